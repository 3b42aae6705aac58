"""``fedpriv doctor`` as a person meets it: lines, JSON, exit codes, nothing left behind, and every check can fail."""

import fcntl
import importlib.metadata
import json
import platform
from pathlib import Path

import torch
from command_line import call

import fedpriv
from fedpriv.cli.main import COMMANDS
from fedpriv.experiment.verbs import diagnosing

NAMED_OTHERWISE = {"list": "catalogue", "audit-dp": "audit_dp"}
"""Commands whose verb is called otherwise: ``fedpriv.list`` would hide Python's own, and no name of Python has a dash."""


def test_every_command_is_a_call_of_a_public_verb():
    for name, place in COMMANDS.items():
        verb = getattr(fedpriv, NAMED_OTHERWISE.get(name, name))
        assert callable(verb), name
        source = Path(fedpriv.__file__).parent / "cli" / f"{place.partition(':')[0]}.py"
        assert f"fedpriv.{verb.__name__}(" in source.read_text(), name


CHECKS = ["packages", "machine", "output", "computing"]


def test_lines_can_be_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "doctor", "--device", "cpu")
    lines = out.splitlines()
    assert code == 0
    assert [line.split()[1] for line in lines[:-2]] == [f"{name}:" for name in CHECKS]
    assert all(line.split()[0] in ("ok", "warning") for line in lines[:-2])
    assert lines[-2].startswith("fedpriv works here")
    for version in (fedpriv.__version__, platform.python_version(), f"torch {importlib.metadata.version('torch')}"):
        assert version in out
    assert str(Path.home()) + "/" not in out
    assert list(tmp_path.iterdir()) == []


def test_json_says_the_same_and_a_failure_exits_with_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--json")
    told = json.loads(out)
    assert code == 1
    assert told["failed"] is True
    assert [one["name"] for one in told["findings"] if one["status"] == "failed"] == ["computing"]
    assert told["verdict"].startswith("failed: computing")
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--quiet")
    assert code == 1
    assert len(out.splitlines()) == 2


def finding(name, **options):
    (row,) = [row for row in fedpriv.doctor(device="cpu", **options).findings if row.name == name]
    return row


def test_a_check_that_breaks_has_failed_in_one_line_without_paths_of_the_user(monkeypatch):
    def breaks():
        raise OSError(f"{Path.home()}/x\ny")

    monkeypatch.setattr(diagnosing, "_machine", breaks)
    assert finding("machine").status == "failed"
    assert finding("machine").told.startswith("OSError: ~/x y")


def test_versions_are_compared_with_their_bounds(monkeypatch):
    versions = {"fedpriv": "0.0.1", "numpy": "2.0+local", "scipy": "1.14", "opacus": "1.4"}
    needs = ["numpy>=1.26", "old<2; python_version<'3'", "opacus>=1.5; extra == 'dp'", "ruff>=1; extra == 'dev'"]
    needs += ["absent>=2; extra == 'frames'"]

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: needs)
    status, told = diagnosing._packages()
    assert (status, told.partition(", numpy")[2]) == ("warning", " 2.0+local, opacus 1.4 (expected >=1.5)")
    needs += ["scipy>=99", "missing>=1"]
    status, told = diagnosing._packages()
    assert status == "failed"
    assert told.endswith("scipy 1.14 (expected >=99), missing absent (expected >=1)")


def test_scarce_memory_warns(monkeypatch):
    for free, status in ((1 << 30, "warning"), (4 << 30, "ok"), (None, "ok")):
        monkeypatch.setattr(diagnosing, "free_memory", lambda free=free: free)
        assert diagnosing._machine()[0] == status


def test_an_output_folder_is_tried(tmp_path, monkeypatch):
    for out in (tmp_path, tmp_path / "a" / "b"):
        assert diagnosing._output(out)[0] == "ok"
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert diagnosing._output(out)[0] == "failed"
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", lambda *_: None)
        assert diagnosing._output(tmp_path)[0] == "warning"

    def disk_full(path, value):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(diagnosing, "write_json", disk_full)
    status, told = diagnosing._output(tmp_path)
    assert (status, told.endswith("cannot be written: No space left on device")) == ("failed", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_device_that_computes_otherwise_has_failed(monkeypatch):
    """The second convolution is the device's: wrong by 5 % or not a number it fails."""
    exact = torch.conv2d
    for change, status in ((lambda x: x, "ok"), (lambda x: 1.05 * x, "failed"), (nan, "failed")):
        changes = iter([lambda x: x, change])
        monkeypatch.setattr(torch, "conv2d", lambda x, w, changes=changes: next(changes)(exact(x, w)))
        assert diagnosing._computing("cpu")[0] == status


def nan(values):
    return values * float("nan")
