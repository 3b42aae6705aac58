"""The guard in a client of Flower and of NVFlare: it says what it found, and a leak need not leave the client."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flower_cases import Array, ArrayRecord, ClientApp, LocalGrid, Message, MetricRecord, RecordDict
from flwr.app import Context
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from looped import each
from torch.nn.functional import cross_entropy

import fedpriv
from fedpriv.util.errors import UserError

pytest.importorskip("nvflare", reason="NVFlare, whose results are filtered, is not installed")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContextManager

pytestmark = pytest.mark.frameworks

JUDGED = "leak:reconstruction"
DATA = fedpriv.load("fashion", per_class=20)


def network():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))


def given(place, images=1):
    """Return what a client tells its guard: each holds other images."""
    own = slice(2 * place, 2 * place + images)
    batch = fedpriv.BatchFacts(batch_size=images, learning_rate=0.5, steps=1)
    truth = {"images": DATA.images[own], "labels": DATA.labels[own], "auxiliary": DATA.images[100:]}
    return truth | {"model": network(), "batch": batch, "fail_on": JUDGED}


def trained(state, place, noise=0.0):
    model = network()
    model.load_state_dict(state)
    one = given(place)
    cross_entropy(model(one["images"]), one["labels"]).backward()
    torch.manual_seed(place)
    with torch.no_grad():
        for value in model.parameters():
            value -= 0.5 * (value.grad + noise * value.grad.norm() * torch.randn_like(value))
    return model.state_dict()


def start():
    torch.manual_seed(0)
    return network().state_dict()


# ---------------------------------------------------------------- Flower

NODES = {11: 0, 12: 1, 13: 2}


def app(*mods, named=True):
    """Return an app whose partition 0 sends noise, and the others the step on one image."""
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message, context):
        place = context.node_config["partition-id"]
        arrays = [torch.from_numpy(one.numpy()) for one in message.content["arrays"].values()]
        after = trained(dict(zip(network().state_dict(), arrays, strict=True)), place, noise=0.0 if place else 9.0)
        names = after if named else map(str, range(len(after)))
        record = ArrayRecord(dict(zip(names, [Array(value.numpy()) for value in after.values()], strict=True)))
        return Message(RecordDict({"arrays": record, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    return made


def played(client):
    """Return the weights after a round of averaging, and how many clients' answers had arrays."""
    server, grid, found = ServerApp(), LocalGrid(client, NODES), {}

    @server.main()
    def main(grid, context):
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
        arrays = ArrayRecord({name: Array(value.numpy()) for name, value in start().items()})
        found["weights"] = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1).arrays

    server(grid, Context(1, 0, {}, RecordDict(), {}))
    return found["weights"], sum(len(content or b"") > 1000 for _, content in grid.wire) - len(NODES)


@each(
    "named, more, sent",
    [
        (True, {}, 3),
        (True, {"action": "drop"}, 1),
        (False, {"action": "drop"}, 1),
        (True, {"action": "drop", "also_inconclusive": True}, 0),
    ],
)
def test_a_strategy_goes_on_without_what_is_withheld(named, more, sent):
    mod = fedpriv.flower.guard(lambda context: given(context.node_config["partition-id"]), **more)
    weights, count = played(app(mod, named=named))
    assert count == sent
    if sent == 1 and named:  # the one that was sent is the average
        for name, value in trained(start(), 0, noise=9.0).items():
            np.testing.assert_allclose(weights[name].numpy(), value.numpy(), rtol=1e-5)


def test_verdicts_are_said_and_a_fault_is_none(capsys):
    def facts(context):
        if context.node_config["partition-id"] == 2:
            raise OSError("no disk")
        return given(context.node_config["partition-id"])

    assert played(app(fedpriv.flower.guard(facts, action="drop")))[1] == 2
    said = capsys.readouterr().err
    assert [said.count(text) for text in ("guard: leak", "guard: inconclusive", "nothing is sent")] == [1, 2, 1]
    assert "guard: inconclusive (OSError: no disk)" in said
    with pytest.raises(UserError, match="action='stop': expected log or drop"):
        fedpriv.flower.guard(facts, action="stop")


# ---------------------------------------------------------------- NVFlare


@each("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
@each("action, place, kept", [("log", 1, True), ("drop", 1, False), ("drop", 0, True)])
def test_a_filter_of_nvflare_empties_a_result_that_leaks(action, place, kept, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_site", SimpleNamespace(facts=lambda site: given(int(site[-1]))))
    made = fedpriv.nvflare.Guard("own_site:facts", action=action)
    context = FLContextManager(identity_name=f"site-{place}").new_context()
    before = {name: value.numpy() for name, value in start().items()}
    context.set_prop(FLContextKey.TASK_DATA, DXO(DataKind.WEIGHTS, before).to_shareable(), private=True, sticky=False)
    made.handle_event(EventType.AFTER_TASK_DATA_FILTER, context)
    after = {name: value.numpy() for name, value in trained(start(), place, noise=0.0 if place else 9.0).items()}
    sent = {name: value - before[name] for name, value in after.items()} if kind == DataKind.WEIGHT_DIFF else after
    passed = from_shareable(made.process(DXO(kind, sent, meta={"steps": 1}).to_shareable(), context))
    assert (passed.data_kind, passed.meta["steps"], bool(passed.data)) == (kind, 1, kept)
    assert passed.validate() == ""


JOB = """
import os
import fedpriv.nvflare
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv
from site_code import Net

if __name__ == "__main__":
    recipe = FedAvgRecipe(name="job", model=Net(), min_clients=3, num_rounds=2, train_script="client.py")
    recipe.add_client_output_filter(fedpriv.nvflare.Guard("site_code:facts", action="drop"), tasks=["train"])
    recipe.execute(SimEnv(num_clients=3, workspace_root=os.path.abspath("work")))
"""

SITE = """
import torch
import fedpriv

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(784, 16), torch.nn.Linear(16, 10)

    def forward(self, images):
        return self.head(torch.relu(self.hidden(images.flatten(1))))

def facts(site):
    data, place = fedpriv.load("fashion", per_class=20), int(site[-1])
    return dict(
        model=Net(), images=data.images[place : place + 1], labels=data.labels[place : place + 1],
        auxiliary=data.images[100:], fail_on="leak:reconstruction",
        batch=fedpriv.BatchFacts(batch_size=1, learning_rate=0.5, steps=1),
    )
"""

CLIENT = """
import nvflare.client as flare
import torch
from site_code import Net, facts

flare.init()
site = flare.get_site_name()
while flare.is_running():
    received, model, own = flare.receive(), Net(), facts(site)
    model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
    torch.nn.functional.cross_entropy(model(own["images"]), own["labels"]).backward()
    with torch.no_grad():
        for value in model.parameters():
            value -= 0.5 * value.grad if site == "site-1" else torch.randn_like(value)
    flare.send(flare.FLModel(params=model.state_dict()))
"""


@pytest.mark.slow
def test_a_job_of_the_simulator_goes_on_without_what_is_withheld(tmp_path):
    for name, text in {"job.py": JOB, "site_code.py": SITE, "client.py": CLIENT}.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-2000:]
    assert told.count("guard: leak") == 2, told[-4000:]  # of site-1, in both rounds
    assert told.count("Empty result from client site-1, skipping.") == 2
    assert told.count("Aggregated 2/3 results") == 2
