"""The work of each side, at its smallest, in this process: turns are told, peers are found where they are."""

import io
import json
import random
import sys
import textwrap

import numpy as np
import pytest

from fedpriv.experiment.benchmarks import (
    commands,
    federated_round,
    gradient_matching,
    htfllib,
    many_clients,
    many_searches,
    peak,
    scoring_many,
    start_up,
)
from fedpriv.experiment.benchmarks.turns import MissingPeer, Over, Turns
from fedpriv.util.errors import UserError


@pytest.fixture
def settings(tmp_path):
    return {"device": "cpu", "seed": 0, "images": None, "scratch": str(tmp_path)}


def taken(work, settings, *words):
    """Turns that a side takes when it is told these words, and nothing more."""
    said = io.StringIO()
    with pytest.raises(Over):
        work(settings, Turns(io.StringIO("".join(f"{word}\n" for word in words)), said))
    return [json.loads(line) for line in said.getvalue().splitlines()]


def test_a_round_of_a_federation_is_a_turn(settings):
    own = settings | {"method": "local", "per_class": 12}
    first, second = taken(federated_round.by_fedpriv, own, "count", "measure")
    assert first["operations"] > 1e9
    assert second["cpu"] > 0
    assert "operations" not in second


@pytest.mark.parametrize("attack", ["inverting-gradients", "dlg"])
def test_uploads_are_attacked_once_a_turn(settings, attack):
    own = settings | {"attack": attack, "net": "lenet-sigmoid", "targets": 2, "steps": 2}
    first, second = taken(gradient_matching.by_fedpriv, own, "count", "measure")
    assert first["operations"] > 0
    assert second["cpu"] > 0


def test_operations_of_a_few_steps_tell_of_all(settings):
    own = settings | {"attack": "inverting-gradients", "net": "lenet-sigmoid", "targets": 2}
    (short,), (long,) = (taken(gradient_matching.by_fedpriv, own | {"steps": steps}, "count") for steps in (10, 20))
    assert long["operations"] == pytest.approx(2 * short["operations"], rel=0.35)  # beside what is done once


def test_representations_are_inverted_once_a_turn(settings):
    own = settings | {"targets": 2, "iterations": 2}
    for work, more in ((many_searches.by_fedpriv, {"rows": 2}), (many_searches.by_modules, {})):
        (only,) = taken(work, own | more, "measure")
        assert only["cpu"] > 0


def test_targets_are_scored_once_a_turn(settings):
    (only,) = taken(scoring_many.by_fedpriv, settings | {"targets": 12}, "measure")
    assert only["cpu"] > 0
    for work in (scoring_many.similar_by_fedpriv, scoring_many.similar_by_torchmetrics):
        (only,) = taken(work, settings | {"shape": [2, 1, 28, 28], "times": 2}, "measure")
        assert only["cpu"] > 0


def test_memory_at_its_peak_is_told(settings, monkeypatch):
    monkeypatch.setattr(many_clients, "IMAGES", 200)
    (only,) = taken(many_clients.peak, settings | {"clients": 10, "rounds": 1}, "measure")
    assert 100 < only["mib"] < 10**5


def test_commands_are_timed_in_a_folder_of_their_own(settings, monkeypatch, tmp_path):
    def pretend(arguments, folder):
        assert arguments[-2:] == ["--out", "out"]
        (folder / "out").mkdir()
        return {"cpu": 5.0, "wall": 7.0}

    monkeypatch.setattr(commands, "run_command", pretend)
    own = settings | {"arguments": ["attack", "--target", "entangled"]}
    assert [turn["wall"] for turn in taken(commands.attack, own, "measure", "measure")] == [7.0, 7.0]
    assert not (tmp_path / "out").exists()


def test_a_command_that_fails_says_why(settings):
    own = settings | {"arguments": ["list", "metods"]}
    with pytest.raises(RuntimeError, match=r"fedpriv list metods ended with exit code 2: .*did you mean 'methods'"):
        taken(start_up.command, own, "measure")


def test_a_command_is_timed_with_all_that_it_starts(settings):
    (only,) = taken(start_up.command, settings | {"arguments": ["--help"]}, "measure")
    assert 0.02 < only["cpu"] < only["wall"] + 1


def test_the_fixed_cost_of_a_study_is_what_its_cells_do_not_explain(settings, monkeypatch):
    # a fixed cost of 3 and 0.5 a cell
    monkeypatch.setattr(start_up, "_study", lambda cells, seed, folder: dict.fromkeys(("cpu", "wall"), 3 + cells / 2))
    (only,) = taken(start_up.fixed_cost_of_a_study, settings, "measure")
    assert only["cpu"] == pytest.approx(3.0)


def test_the_operations_of_the_peak_are_those_that_are_counted(monkeypatch):
    monkeypatch.setattr(peak, "_matrix", lambda device: (64, peak._TIMES * 2.0 * 64**3))
    monkeypatch.setattr(peak, "_convolution", lambda device: (1, peak._TIMES * 2.0 * 32 * 32 * 64 * 64 * 9))
    for side, work in zip(peak.sides("cpu"), (peak.multiply, peak.convolve), strict=True):
        (only,) = taken(work, {"device": "cpu"}, "count")
        assert only["operations"] == side.units


# ---------------------------------------------------------------- peers


@pytest.fixture
def undone(monkeypatch):
    """Put back what another library changes in this process."""
    known, state, drawn = set(sys.modules), random.getstate(), np.random.get_state()  # noqa: NPY002
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "0")
    yield monkeypatch
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in ("flcore", "breaching", "h5py"):
            del sys.modules[name]
    random.setstate(state)
    np.random.set_state(drawn)  # noqa: NPY002


BASE = """
import numpy as np
class Server:
    def __init__(self, args, times):
        self.args = args
    def select_clients(self):
        return []
"""
LOCAL = """
import numpy as np, torch
from flcore.servers.serverbase import Server
class Local(Server):
    def __init__(self, args, times):
        super().__init__(args, times)
        assert args.save_folder_name_full.endswith("models")
        self.sizes = []
        for client in range(args.num_clients):
            held = np.load(f"../dataset/{args.dataset}/train/{client}.npz", allow_pickle=True)["data"].tolist()
            assert held["x"].shape[1:] == (3, 32, 32) and -1 <= held["x"].min() and held["x"].max() <= 1
            self.sizes.append(len(held["y"]))
    def train(self):
        for _ in range(self.args.global_rounds + 1):
            self.select_clients()
            torch.ones(sum(self.sizes), 4) @ torch.ones(4, 4)
"""


def checkout(folder, **files):
    place = folder / "checkout" / "system" / "flcore" / "servers"
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / f"{name}.py").write_text(textwrap.dedent(text))
    return str(folder / "checkout")


def test_a_round_of_htfllib_is_a_turn_on_the_images_that_are_divided(settings, tmp_path, undone):
    undone.chdir(tmp_path)
    own = settings | {
        "method": "local",
        "per_class": 12,
        "checkout": checkout(tmp_path, serverbase=BASE, serverlocal=LOCAL),
    }
    first, second = taken(htfllib.by_htfllib, own, "count", "measure")
    trained = first["operations"] / (2 * 4 * 4)  # images of all clients' training parts
    assert 0 < trained < 120
    assert second["cpu"] >= 0


@pytest.mark.parametrize(
    ("place", "words"),
    [(None, "no checkout was named"), ("", "holds no folder system/"), ("bad", r"not importable \(No module named")],
)
def test_without_htfllib_the_line_says_what_to_do(settings, tmp_path, undone, place, words):
    undone.chdir(tmp_path)
    where = checkout(tmp_path) if place == "bad" else None if place is None else str(tmp_path)
    with pytest.raises(MissingPeer, match=f"HtFLlib.*{words}.*git clone"):
        taken(htfllib.by_htfllib, settings | {"method": "local", "per_class": 12, "checkout": where}, "measure")


BREACHING = """
from types import SimpleNamespace
import torch
def get_attack_config(attack, overrides):
    print("something that nobody wants to read")
    return attack, overrides
class Attacker:
    def __init__(self, model, loss, config, setup):
        self.config = config
    def reconstruct(self, sent, shared, secrets):
        assert len(sent[0]["parameters"]) == len(shared[0]["gradients"])
        assert shared[0]["metadata"]["labels"].shape == (1,)
        steps = int(self.config[1][-1].partition("=")[2])
        for _ in range(steps):
            torch.ones(10, 10) @ torch.ones(10, 10)
        return {"data": torch.zeros(1, *sent[0]["metadata"].shape)}, {}
attacks = SimpleNamespace(prepare_attack=Attacker)
"""


def test_the_same_uploads_are_attacked_by_breaching(settings, tmp_path, undone, capsys):
    (tmp_path / "breaching.py").write_text(BREACHING)
    undone.syspath_prepend(tmp_path)
    own = settings | {"attack": "dlg", "net": "lenet-sigmoid", "targets": 3, "steps": 10}
    first, second = taken(gradient_matching.by_breaching, own, "count", "measure")
    assert first["operations"] == 3 * 10 * 2000  # of all steps, though few are taken
    assert second["cpu"] >= 0
    assert capsys.readouterr().out == ""


def test_without_breaching_the_line_says_what_to_install(settings, undone):
    undone.setitem(sys.modules, "breaching", None)
    own = settings | {"attack": "dlg", "net": "lenet-sigmoid", "targets": 1, "steps": 1}
    with pytest.raises(MissingPeer, match=r"breaching: not importable .*pip install"):
        taken(gradient_matching.by_breaching, own, "measure")


def test_images_of_a_folder_take_the_place_of_random_ones(settings, tmp_path):
    from PIL import Image

    for name in ("cats", "dogs"):
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (40, 40), (10 * number, 0, 255)).save(tmp_path / "own" / name / f"{number}.png")
    from fedpriv.experiment.benchmarks.pictures import some_images

    images, labels = some_images(str(tmp_path / "own"), 6, 0)
    assert images.shape == (6, 3, 32, 32)
    assert images[:, 2].min() == 1.0
    assert sorted(labels.tolist()) == [0, 0, 0, 1, 1, 1]
    with pytest.raises(UserError, match="holds 6 images; expected 7 at least"):
        some_images(str(tmp_path / "own"), 7, 0)
