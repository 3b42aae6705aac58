"""``fedpriv doctor`` as a person meets it: lines, JSON, exit codes; every check can fail."""

import importlib.metadata
import json
import platform
from pathlib import Path

import torch
from command_line import call

import fedpriv
from fedpriv.api import cataloguing
from fedpriv.cli.main import COMMANDS

NAMED_OTHERWISE = {"list": "catalogue", "audit-dp": "audit_dp"}
"""Commands whose verb is called otherwise: ``fedpriv.list`` would hide Python's own, and no name of Python has a dash."""


def test_every_command_is_a_call_of_a_public_verb():
    for name, place in COMMANDS.items():
        verb = getattr(fedpriv, NAMED_OTHERWISE.get(name, name))
        source = Path(fedpriv.__file__).parent / "cli" / f"{place.partition(':')[0]}.py"
        assert f"fedpriv.{verb.__name__}(" in source.read_text(), name


def test_lines_can_be_pasted(capsys):
    code, out, _ = call(capsys, "doctor", "--device", "cpu")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["ok", "packages:"], ["ok", "computing:"]]
    for version in (fedpriv.__version__, platform.python_version(), f"torch {importlib.metadata.version('torch')}"):
        assert version in out
    assert str(Path.home()) + "/" not in out


def test_a_failure_exits_with_one(capsys):
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--json")
    told = json.loads(out)
    assert (code, told["failed"]) == (1, True)
    assert [one["name"] for one in told["findings"] if one["status"] == "failed"] == ["computing"]
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--quiet")
    assert (code, len(out.splitlines())) == (1, 1)


def test_a_device_that_computes_otherwise_has_failed(monkeypatch):
    """The second convolution is the device's: wrong by 5 % or not a number it fails."""
    exact = torch.conv2d
    for factor, status in ((1.0, "ok"), (1.05, "failed"), (float("nan"), "failed")):
        factors = iter([1.0, factor])
        monkeypatch.setattr(torch, "conv2d", lambda x, w, factors=factors: next(factors) * exact(x, w))
        assert cataloguing._computing("cpu")[0] == status
