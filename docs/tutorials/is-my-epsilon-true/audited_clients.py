"""The hospitals' app with the privacy that it claims, and canaries in place of what was trained: for the audit alone."""

from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from my_app.client_app import evaluate, train

import fedpriv

app = ClientApp(
    mods=[
        LocalDpMod(clipping_norm=1.0, sensitivity=0.02, epsilon=1.0, delta=1e-5),  # the app's own, as it is
        fedpriv.flower.canary(7),  # the line: last of all, so that the app's own mods have the canaries to protect
    ]
)
app.train()(train)
app.evaluate()(evaluate)
