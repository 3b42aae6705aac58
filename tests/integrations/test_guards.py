"""The guard in a client of Flower and of NVFlare: it says what it found, and a leak need not leave the client."""

import subprocess
import sys
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

DATA = fedpriv.load("fashion", per_class=20)
NODES = {11: 0, 12: 1, 13: 2}


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10))


def given(place):
    """Return what a client tells its guard: each holds another image."""
    truth = {"images": DATA.images[[place]], "labels": DATA.labels[[place]], "auxiliary": DATA.images[100:]}
    batch = fedpriv.BatchFacts(batch_size=1, learning_rate=0.5, steps=1)
    return truth | {"model": network(), "batch": batch, "fail_on": "leak:reconstruction"}


def trained(place):
    """Return the first weights after a step on a client's image, that of the first client in much noise."""
    model, own = network(), given(place)
    cross_entropy(model(own["images"]), own["labels"]).backward()
    with torch.no_grad():
        for value in model.parameters():
            value -= 0.5 * value.grad + (0.0 if place else 5.0) * value.grad.norm() * torch.randn_like(value)
    return model.state_dict()


def played(mod, *, named=True):
    """Return the weights after a round of Flower's averaging, and how many clients' answers had arrays."""
    app, server, grid, found = ClientApp(mods=[mod]), ServerApp(), None, {}

    @app.train()
    def train(message, context):
        after = trained(context.node_config["partition-id"])
        names = after if named else map(str, range(len(after)))
        arrays = ArrayRecord(dict(zip(names, [Array(value.numpy()) for value in after.values()], strict=True)))
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 1})}), reply_to=message)

    @server.main()
    def main(grid, context):
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
        arrays = ArrayRecord({name: Array(value.numpy()) for name, value in network().state_dict().items()})
        found["weights"] = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1).arrays

    grid = LocalGrid(app, NODES)
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
    weights, count = played(mod, named=named)
    assert count == sent
    if sent == 1 and named:  # what is averaged is the one
        for name, value in trained(0).items():
            np.testing.assert_allclose(weights[name].numpy(), value.numpy(), rtol=1e-5)


def test_verdicts_are_said_and_a_fault_is_none(capsys):
    def facts(context):
        if context.node_config["partition-id"] == 2:
            raise OSError("no disk")
        return given(context.node_config["partition-id"])

    assert played(fedpriv.flower.guard(facts, action="drop"))[1] == 2
    said = capsys.readouterr().err
    assert [said.count(text) for text in ("guard: leak", "guard: inconclusive", "nothing is sent")] == [1, 2, 1]
    assert "guard: inconclusive (OSError: no disk)" in said
    with pytest.raises(UserError, match="action='stop': expected log or drop"):
        fedpriv.flower.guard(facts, action="stop")


@each("kind", [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF])
@each("action, place, kept", [("log", 1, True), ("drop", 1, False), ("drop", 0, True)])
def test_a_filter_of_nvflare_empties_a_result_that_leaks(action, place, kept, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "own_site", SimpleNamespace(facts=lambda site: given(int(site[-1]))))
    made = fedpriv.nvflare.Guard("own_site:facts", action=action)
    context = FLContextManager(identity_name=f"site-{place}").new_context()
    before = {name: value.numpy() for name, value in network().state_dict().items()}
    context.set_prop(FLContextKey.TASK_DATA, DXO(DataKind.WEIGHTS, before).to_shareable(), private=True, sticky=False)
    made.handle_event(EventType.AFTER_TASK_DATA_FILTER, context)
    difference = kind == DataKind.WEIGHT_DIFF
    sent = {name: value.numpy() - difference * before[name] for name, value in trained(place).items()}
    passed = from_shareable(made.process(DXO(kind, sent, meta={"steps": 1}).to_shareable(), context))
    assert (passed.data_kind, passed.meta["steps"], bool(passed.data)) == (kind, 1, kept)


JOB = """
import os, fedpriv.nvflare
from client import Net
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

recipe = FedAvgRecipe(name="job", model=Net(), min_clients=3, num_rounds=2, train_script="client.py")
recipe.add_client_output_filter(fedpriv.nvflare.Guard("client:facts", action="drop"), tasks=["train"])
recipe.execute(SimEnv(num_clients=3, workspace_root=os.path.abspath("work")))
"""

CLIENT = """
import fedpriv, torch
import nvflare.client as flare

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = torch.nn.Linear(784, 16), torch.nn.Linear(16, 10)

    def forward(self, images):
        return self.head(torch.relu(self.hidden(images.flatten(1))))

def facts(site):
    data, batch = fedpriv.load("fashion", per_class=20), fedpriv.BatchFacts(batch_size=1, learning_rate=0.5, steps=1)
    truth = dict(images=data.images[:1], labels=data.labels[:1], auxiliary=data.images[100:])
    return dict(truth, model=Net(), batch=batch, fail_on="leak:reconstruction")

if __name__ == "__main__":
    flare.init()
    while flare.is_running():
        received, model, own = flare.receive(), Net(), facts("")
        model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        torch.nn.functional.cross_entropy(model(own["images"]), own["labels"]).backward()
        for value in model.parameters():
            value.data -= 0.5 * value.grad if flare.get_site_name() == "site-1" else torch.randn_like(value)
        flare.send(flare.FLModel(params=model.state_dict()))
"""


@pytest.mark.slow
def test_a_job_of_the_simulator_goes_on_without_what_is_withheld(tmp_path):
    for name, text in {"job.py": JOB, "client.py": CLIENT}.items():
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told[-2000:]
    lines = "guard: leak", "Empty result from client site-1, skipping.", "Aggregated 2/3 results"
    assert [told.count(line) for line in lines] == [2, 2, 2]  # of two rounds
