"""NVFlare's side of the recorder: on messages made by hand, and in a job of its simulator."""

import copy
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from compare import expect_same

import fedpriv
from fedpriv.integrations.run import RecordedRun
from fedpriv.util.errors import UserError

pytest.importorskip("nvflare", reason="NVFlare, whose jobs are recorded, is not installed")

from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.event_type import EventType
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ProcessType, ReservedKey
from nvflare.apis.fl_context import FLContextManager

pytestmark = pytest.mark.frameworks

WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(2, dtype=np.float32)}


@pytest.fixture
def record(tmp_path):
    made = fedpriv.nvflare.Record(tmp_path / "mine")
    yield made
    made.handle_event(EventType.END_RUN, None)


def context(direction, site="site-1", task="train", process=ProcessType.SERVER_JOB, round_=None):
    server, peer = (FLContextManager(identity_name=name).new_context() for name in ("server", site))
    server.put(key=ReservedKey.PEER_CTX, value=peer, private=True, sticky=False)
    values = {FLContextKey.FILTER_DIRECTION: direction, FLContextKey.TASK_NAME: task, ReservedKey.PROCESS_TYPE: process}
    for key, value in values.items():
        server.put(key=key, value=value, private=True, sticky=False)
    if round_ is not None:
        server.set_prop("current_round", round_)
    return server


def message(data=WEIGHTS, round_=0, kind=DataKind.WEIGHTS, **meta):
    made = DXO(kind, data, meta=meta).to_shareable()
    if round_ is not None:
        made.set_header("current_round", round_)
    return made


def send(record, round_=0, sites=("site-1", "site-2"), data=WEIGHTS, **more):
    for site in sites:
        record.process(message(data, round_), context(FilterKey.OUT, site, **more))


def answer(record, round_=0, site="site-1", data=WEIGHTS, kind=DataKind.WEIGHTS, **meta):
    return record.process(message(data, round_, kind, **meta), context(FilterKey.IN, site))


def run_of(record):
    return RecordedRun.open(Path(record.path))


def test_a_filter_of_nvflare_that_jobs_find_by_name(tmp_path):
    made = fedpriv.nvflare.Record("runs/mine")
    assert isinstance(made, Filter)
    assert (type(made).__module__, type(made).__qualname__) == ("fedpriv.nvflare", "Record")
    from nvflare.fuel.utils.class_utils import instantiate_class

    again = instantiate_class("fedpriv.nvflare.Record", {"path": made.path})
    assert type(again) is type(made)
    assert again.path == made.path
    assert made.path.startswith("/")
    assert made.path.endswith("runs/mine")


def test_messages_pass_as_they_are_and_are_recorded(record):
    send(record)
    given = message({name: value + 1 for name, value in WEIGHTS.items()}, 0)
    before = copy.deepcopy(given)
    passed = record.process(given, context(FilterKey.IN, "site-2"))
    assert passed is given
    assert passed.keys() == before.keys()
    np.testing.assert_array_equal(passed["DXO"]["data"]["w"], before["DXO"]["data"]["w"])
    answer(record)
    run = run_of(record)
    assert run.framework.startswith("nvflare ")
    assert run.named_by_data
    assert run.rounds() == (0,)
    lines = run.messages(0)
    assert [(line.direction, line.clients, line.phase) for line in lines] == [
        ("down", ("site-1",), "train"),
        ("down", ("site-2",), "train"),
        ("up", ("site-2",), "train"),
        ("up", ("site-1",), "train"),
    ]
    assert lines[0].file == lines[1].file
    arrays = run.arrays(lines[2])
    assert list(arrays) == ["WEIGHTS"]
    expect_same(arrays["WEIGHTS"]["w"], torch.from_numpy(WEIGHTS["w"] + 1))


def test_differences_tensors_collections_and_what_is_told_beside_them(record):
    send(record)
    answer(
        record,
        data={"w": torch.ones(2, 3), "b": np.float32(2)},
        kind=DataKind.WEIGHT_DIFF,
        **{MetaKey.NUM_STEPS_CURRENT_ROUND: 7, MetaKey.FILTER_HISTORY: ["PercentilePrivacy"]},
    )
    parts = {name: DXO(DataKind.WEIGHTS, WEIGHTS) for name in ("encoder", "head")}
    record.process(message(parts, 0, DataKind.COLLECTION), context(FilterKey.IN, "site-2"))
    *_, one, other = run_of(record).messages(0)
    assert one.sets == {"WEIGHT_DIFF": 2}
    assert one.facts["NUM_STEPS_CURRENT_ROUND"] == 7
    assert one.facts["filter_history"] == "PercentilePrivacy"
    assert one.facts["difference"] is True
    assert "difference" not in other.facts
    assert run_of(record).arrays(one)["WEIGHT_DIFF"]["b"].shape == ()
    assert other.sets == {"encoder/WEIGHTS": 2, "head/WEIGHTS": 2}


def test_without_nvflare_one_line_says_what_to_install(monkeypatch):
    from fedpriv.integrations.nvflare import filter_class

    monkeypatch.setitem(sys.modules, "nvflare.apis.filter", None)
    with pytest.raises(UserError, match=r"pip install 'fedpriv\[nvflare\]'"):
        filter_class("fedpriv.nvflare", "Record")


JOB = """
import os
import fedpriv.nvflare
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

if __name__ == "__main__":
    recipe = NumpyFedAvgRecipe(
        name="job", model=[[1.0, 2.0], [3.0, 4.0]], min_clients=2, num_rounds=2, train_script="client.py"
    )
    recipe.add_server_input_filter(fedpriv.nvflare.Record("runs/mine"), tasks=["train"])
    recipe.add_server_output_filter(fedpriv.nvflare.Record("runs/mine"), tasks=["train"])
    recipe.execute(SimEnv(num_clients=2, workspace_root=os.path.abspath("work")))
"""

CLIENT = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    params = {name: value + len(flare.get_site_name()) for name, value in model.params.items()}
    flare.send(flare.FLModel(params=params, params_type=model.params_type))
"""


@pytest.mark.slow
def test_a_job_of_the_simulator_is_recorded(tmp_path):
    (tmp_path / "job.py").write_text(textwrap.dedent(JOB))
    (tmp_path / "client.py").write_text(textwrap.dedent(CLIENT))
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    run = RecordedRun.open(tmp_path / "runs" / "mine")
    assert run.rounds() == (0, 1)
    for number in run.rounds():
        lines = run.messages(number)
        assert sorted((line.direction, *line.clients) for line in lines) == [
            *(("down", "site-1"), ("down", "site-2"), ("up", "site-1"), ("up", "site-2"))
        ]
    up = next(line for line in run.messages(0) if line.direction == "up")
    expect_same(run.arrays(up)["WEIGHTS"]["numpy_key"], torch.tensor([[7.0, 8.0], [9.0, 10.0]], dtype=torch.float64))
    assert run.notes() == ()
