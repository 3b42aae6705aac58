"""The private trace: what is stored, who may read it, and that attacks do without it up to scoring."""

import ast
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from federations import CPU, small, train_small
from safetensors.torch import save

import fedpriv
from fedpriv.attacks.inversion.vector import DipInversion
from fedpriv.attacks.observation import TargetId, ThreatModel
from fedpriv.federation.capture import load_trace, trace_blocks, trace_path
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.rounds import run_clients
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.states import Trace
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource, local_steps
from fedpriv.util.errors import UserError
from fedpriv.util.files import write_bytes

PACKAGE = Path(fedpriv.__file__).parent


def trained(path, engine=run_clients, **changes):
    values = {"method": "fedavg", "clients": 3, "rounds": 2, "models": "small-mlp", "per_class": 8} | changes
    config = small(training=LocalTraining(learning_rate=0.1, batch_size=1, max_steps=1), **values)
    return train_small(path, config, engine)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("traces")
    return {name: trained(home / name, method=name) for name in ("fedavg", "fedre")}


@pytest.fixture
def bare(finished, tmp_path):
    """Return runs whose private trace somebody took away."""

    def without(name):
        directory, federation = finished[name]
        shutil.copytree(directory.path, tmp_path / name)
        shutil.rmtree(tmp_path / name / "truth")
        return RunDirectory.open(tmp_path / name), federation

    return without


# ---------------------------------------------------------------- storage


def test_a_trace_is_read_back_as_it_was_stored(finished):
    directory = finished["fedavg"][0]
    steps = (torch.tensor([3, 1]), torch.tensor([], dtype=torch.int64), torch.tensor([2]))
    for number, trace in enumerate((Trace(), Trace(()), Trace(steps, torch.tensor([0.25, 0.75]))), start=50):
        write_bytes(trace_path(directory, number, 0), save(trace_blocks(trace)))
        found = load_trace(directory, number, 0)
        assert (found.steps is None) == (trace.steps is None)
        assert [index.tolist() for index in found.steps or ()] == [index.tolist() for index in trace.steps or ()]
        assert all(index.dtype == torch.int64 for index in found.steps or ())
        assert (found.weights is None) == (trace.weights is None)
        assert trace.weights is None or torch.equal(found.weights, trace.weights)


def test_every_captured_round_has_the_traces_of_its_clients_and_no_other_has(tmp_path):
    directory, federation = trained(tmp_path / "run", capture="last", rounds=3, participation=0.7, keep=(1,))
    stored = {path.parent.name: [] for path in (directory.path / "truth").glob("*/*")}
    for path in sorted((directory.path / "truth").glob("*/*")):
        stored[path.parent.name].append(path.name)
    assert stored == {
        f"round-{number:04d}": [f"client-{k:03d}.safetensors" for k in federation.participants(number)]
        for number in (1, 3)
    }


def test_a_method_that_notes_nothing_is_found_out(tmp_path):
    def forgetful(federation, jobs):
        return (replace(result, trace=Trace()) for result in run_clients(federation, jobs))

    directory, federation = trained(tmp_path / "run", forgetful, rounds=1)
    with pytest.raises(UserError, match=r"'fedavg' noted no local steps.*setup.trace"):
        local_steps(directory, 1, 0)
    with pytest.raises(UserError, match="the mixture's weights were not recorded"):
        RunSource(directory, federation, "model").mixture(TargetId(1, 0))


# ---------------------------------------------------------------- who may read it


def imports(path):
    """Return the modules, and the names from modules, that a file imports, at its head or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def importers(module):
    return {
        str(path.relative_to(PACKAGE)).removesuffix(".py")
        for path in PACKAGE.rglob("*.py")
        if any(name == module or name.startswith(module + ".") for name in imports(path))
    }


def test_nothing_but_the_evaluator_reads_the_trace():
    handed_on = "integrations/flower_engine"  # from the node where it was made to the process that stores the run
    assert importers("fedpriv.federation.capture") == {"federation/rounds", "sources/run", handed_on}
    closed = ("fedpriv.sources", "fedpriv.eval", "fedpriv.federation.rounds", "fedpriv.federation.run_directory")
    for path in (PACKAGE / "attacks").rglob("*.py"):
        assert not [name for name in imports(path) if name.startswith(closed)], path


# ---------------------------------------------------------------- without it


def test_mixtures_are_attacked_without_the_trace_and_not_scored(bare, finished):
    directory, federation = bare("fedre")
    attack = DipInversion(iterations=2)
    found, whole = (
        attack(seen.observations, seen.knowledge, seen.targets, seed=0, device=CPU)
        for seen in (
            build_case(RunSource(*run, "entangled"), ThreatModel(), n_targets=2, seed=0)
            for run in ((directory, federation), finished["fedre"])
        )
    )
    assert torch.equal(found.images, whole.images)
    with pytest.raises(UserError, match=r"truth/round-0002/client-00\d.safetensors: missing.*train the run again"):
        RunSource(directory, federation, "entangled").truths(found.targets, seed=0)
