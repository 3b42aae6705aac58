"""Uploads in files: the same records as of ``attack_uploads``, and one line for what does not fit."""

import json
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import done, refused
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy
from upload_cases import smooth

import fedpriv
from fedpriv.sources.upload_files import read_tensors

ATTACK = ("attack", "--target", "model", "--uploads", "uploads", "--images", "images", "--before", "before.pt")
ONE = (*ATTACK, "--model", "of_mine:network", "--attack", "linear-layer", "--no-control")
WAYS = {
    ".safetensors": save_file,
    ".pt": torch.save,
    ".npz": lambda values, path: np.savez(path, **{name: value.numpy() for name, value in values.items()}),
}
MODULE = """
from torch import nn

def network():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))

def nothing():
    raise RuntimeError("out of order")
"""


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """Write the files of three clients, each in another format, and return what ``attack_uploads`` takes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    (tmp_path / "of_mine.py").write_text(MODULE)
    for name in ("uploads", "images", "gradients"):
        (tmp_path / name).mkdir()
    before, found = network().state_dict(), {"uploads": [], "images": [], "labels": []}
    torch.save({f"module.{name}": value for name, value in before.items()}, "before.pt")
    for number, (suffix, save) in enumerate(WAYS.items()):
        model, images, labels = network(), smooth(4, 40 + number), torch.tensor([0, 1, 2, 1])
        cross_entropy(model(images), labels).backward()
        gradient = {name: value.grad for name, value in model.named_parameters()}
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        save(model.state_dict(), f"uploads/client{number}{suffix}")
        save(gradient, f"gradients/client{number}{suffix}")
        save({"images": images, "labels": labels}, f"images/client{number}{suffix}")
        found["uploads"].append(fedpriv.Update(before, model.state_dict()))
        found["images"].append(images)
        found["labels"].append(labels)
    save_file({"images": smooth(20, 90)}, "images/auxiliary.safetensors")
    return found


def test_files_give_the_records_of_attack_uploads(clients, capsys):
    done(capsys, *ONE, "--lr", "0.1", "--quiet", "--out", "result")
    record = json.loads(done(capsys, *ONE, "--lr", "0.1", "--json", "--out", "again"))["attacks"]["linear-layer"]
    batch = fedpriv.BatchFacts(4, 0.1, 1)
    how = {"target": "model", "attacks": "linear-layer", "control": False, "auxiliary": smooth(20, 90)}
    ours = fedpriv.attack_uploads(**clients, model=network(), batch=batch, **how).records["linear-layer"]
    assert record["premise"]["status"] == ours.premise.status == "agrees"
    assert record["advantage_db"] == ours.model_dump(mode="json")["advantage_db"]
    gradients = [word if word != "uploads" else "gradients" for word in ONE]
    found = json.loads(done(capsys, *gradients, "--gradients", "--json", "--out", "of"))["attacks"]["linear-layer"]
    assert found["premise"]["status"] == "agrees"
    one = ("--uploads", "uploads/client1.pt", "--images", "images/client1.pt")
    found = json.loads(done(capsys, *ONE, *one, "--lr", "0.1", "--json", "--out", "one"))["attacks"]["linear-layer"]
    assert found["n_clients"] == 1
    steps = ("--lr", "0.1", "--batch-size", "2", "--epochs", "2")
    found = json.loads(done(capsys, *ONE, *steps, "--json", "--out", "steps"))["attacks"]["linear-layer"]
    assert found["premise"]["n_differ"] or found["premise"]["status"] == "not checkable"


@pytest.mark.parametrize("name", ["model_state_dict", "state_dict", "model"])
def test_a_checkpoint_with_an_optimiser_is_read(name, tmp_path):
    model, path = network(), tmp_path / "last.pt"
    optimiser = torch.optim.Adam(model.parameters()).state_dict()
    torch.save({name: model.state_dict(), "optimizer_state_dict": optimiser, "epoch": 3}, path)
    read = read_tensors(path)
    assert {key: value.tolist() for key, value in read.items()} == {
        k: v.tolist() for k, v in model.state_dict().items()
    }


def test_normalised_images_are_said_by_a_flag(clients, capsys):
    for number, (images, labels) in enumerate(zip(clients["images"], clients["labels"], strict=True)):
        model = network()
        cross_entropy(model((images - 0.5) / 0.25), labels).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        path = next(Path("uploads").glob(f"client{number}.*"))
        WAYS[path.suffix](model.state_dict(), str(path))
    for said, status in (("0.5,0.25", "agrees"), ("[0.5],[0.25]", "agrees"), ("0.1,0.25", "differs")):
        words = (*ONE, "--lr", "0.1", "--json", "--out", said, "--normalise", said)
        assert json.loads(done(capsys, *words))["attacks"]["linear-layer"]["premise"]["status"] == status


WRONG = {
    "no broadcast": (ONE[:7] + ONE[9:], "before: missing"),
    "no images": (ONE[:5] + ONE[7:], "images: missing"),
    "no model": ((*ATTACK, "--lr", "1"), "expected package.module:FACTORY"),
    "a factory that fails": ((*ATTACK, "--model", "of_mine:nothing"), "out of order"),
    "no learning rate": (ONE, "lr: missing"),
    "a federation's flag": ((*ONE, "--clients", "3"), "--clients: not with --uploads"),
    "normalisation alone": (("attack", "--target", "model", "--normalise", "0,1"), "--normalise: needs --uploads"),
    "half a normalisation": ((*ONE, "--lr", "1", "--normalise", "0.5"), "expected mean and std"),
    "words for numbers": ((*ONE, "--lr", "1", "--normalise", "a,b"), "normalise"),
    "a file as a module": ((*ONE, "--lr", "1", "--model", "of_mine.py:network"), "without .py: of_mine:NAME"),
    "images alone": (("attack", "--target", "model", "--images", "images"), "--images: needs --uploads"),
    "no folder": ((*ONE, "--lr", "1", "--uploads", "nowhere"), "nowhere: no such file"),
    "not before": (
        (*ONE, "--lr", "1", "--before", "images/client1.pt"),
        "expected (16, 64) as in the model, got nothing",
    ),
    "code in a file": ((*ONE, "--lr", "1", "--before", "code.pt"), "code in a file is not run; save it anew"),
    "no tensors": ((*ONE, "--lr", "1", "--before", "of_mine.py"), "of_mine.py: expected a file of tensors, one of"),
    "an upload without images": ((*ONE, "--lr", "1", "--images", "gradients"), "no 'images'; it holds"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_line(name, clients, capsys):
    with open("code.pt", "wb") as file:
        pickle.dump(print, file)
    words, expected = WRONG[name]
    assert expected in refused(capsys, *words, "--out", "result")


def test_a_module_that_is_not_there_names_where_it_was_looked_for(clients, capsys, tmp_path):
    line = refused(capsys, *ATTACK, "--model", "of_nobody:network")
    assert f"{tmp_path}, the installed packages" in line
    assert "PYTHONPATH" in line


def test_what_is_wrong_with_a_client_names_its_file(clients, capsys):
    changed = network().state_dict() | {"1.weight": torch.zeros(16, 65)}
    for values, expected in (
        (changed, "uploads/client1.pt: '1.weight': expected (16, 64) as in the model, got (16, 65)"),
        ([changed], "uploads/client1.pt: holds list; expected tensors by name"),
    ):
        torch.save(values, "uploads/client1.pt")
        assert expected in refused(capsys, *ONE, "--lr", "0.1")
    torch.save(network().state_dict(), "uploads/other.pt")
    for values in ({"weights": changed, "epoch": 3}, {"model": changed, "state_dict": changed, "epoch": 3}):
        torch.save(values, "uploads/client1.pt")
        line = refused(capsys, *ONE, "--lr", "0.1")
        assert f"client1.pt: holds {', '.join(map(repr, values))}; expected tensors by name" in line
    torch.save(clients["uploads"][1].after, "uploads/client1.pt")
    assert "images: no file other.safetensors" in refused(capsys, *ONE, "--lr", "0.1")
