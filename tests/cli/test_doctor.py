"""``fedpriv doctor`` as a person meets it: lines, JSON, exit codes, nothing left behind, and every check can fail."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import torch
from command_line import call

import fedpriv
from fedpriv.cli.main import COMMANDS
from fedpriv.datasets.types import Dataset, Samples
from fedpriv.experiment.diagnosis import computed, installed, machine, stored
from fedpriv.experiment.diagnosis.finding import Finding, found_by, private

NAMED_OTHERWISE = {"list": "catalogue", "audit-dp": "audit_dp"}
"""Commands whose verb is called otherwise: ``fedpriv.list`` would hide Python's own, and no name of Python has a dash."""


def test_every_command_is_a_call_of_a_public_verb():
    for name in COMMANDS:
        verb = getattr(fedpriv, NAMED_OTHERWISE.get(name, name))
        assert callable(verb), name
        source = Path(fedpriv.__file__).parent / "cli" / f"{name.replace('-', '_')}.py"
        assert f"fedpriv.{verb.__name__}(" in source.read_text(), name


def only(findings, name):
    (found,) = [one for one in findings if one.name == name]
    return found


# ---------------------------------------------------------------- as a whole


def test_a_sound_installation_is_told_in_lines_that_can_be_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, _ = call(capsys, "doctor", "--device", "cpu")
    lines = out.splitlines()
    assert code == 0
    assert all(line.split()[0] in ("ok", "warning") for line in lines[:-2])
    assert lines[-2].startswith("fedpriv works here")
    assert lines[-1] == "for a bug report, paste all of this"
    for name in (
        "fedpriv",
        "python",
        "torch",
        "device",
        "memory",
        "data: fashion",
        "data: digits",
        "output",
        "computing",
    ):
        assert sum(f"  {name}: " in line for line in lines) == 1, name
    for own in (str(Path.home()) + "/", str(tmp_path), str(Path(fedpriv.__file__).parent)):
        assert own not in out
    assert len(platform.node()) <= 3 or platform.node() not in out
    assert list(tmp_path.iterdir()) == []


def test_json_says_the_same_and_a_failure_exits_with_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(computed, "ITERATIONS", 20)
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--json")
    told = json.loads(out)
    assert code == 1
    assert told["failed"] is True
    assert {one["name"] for one in told["findings"] if one["status"] == "failed"} == {"device", "computing"}
    assert told["verdict"].startswith("failed: device, computing")
    assert only([Finding(**one) for one in told["findings"]], "data: digits").facts["images"] == 1797
    code, out, _ = call(capsys, "doctor", "--device", "cuda:99", "--quiet")
    assert code == 1
    assert len(out.splitlines()) == 3


def test_without_torch_the_rest_is_told(tmp_path):
    code = """
import sys
sys.modules["torch"] = None
import fedpriv
found = fedpriv.doctor()
print(*(one.name for one in found.failed), sep=",")
assert next(one for one in found.findings if one.name == "output").status == "ok"
"""
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ
    )
    assert {"torch", "device", "cpu", "data: fashion", "computing"} <= set(told.stdout.strip().split(","))


# ---------------------------------------------------------------- each check can fail


def test_a_check_that_breaks_has_failed_in_one_line_without_paths_of_the_user():
    def check():
        raise OSError(f"{Path.home()}/x\ny on {platform.node()}")

    found = found_by("it", check)
    assert (found.status, found.name) == ("failed", "it")
    assert found.told.startswith("OSError: ~/x y on ")
    assert private(f"in {Path.cwd()}") == "in ."


def packages(monkeypatch, versions, requires):
    """Install these, as far as the metadata says."""

    def version(name):
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: requires.get(name, []))


def test_versions_are_held_against_their_bounds(monkeypatch):
    needs = ["numpy>=1.26", "scipy>=99", "absent>=1", "old<2; python_version<'3'", "opacus>=1.5; extra == 'dp'"]
    needs += ["torchmetrics[image]>=1.9; extra == 'perceptual'", "pandas>=2; extra == 'frames'"]
    packages(
        monkeypatch,
        {
            "fedpriv": "0.0.1",
            "numpy": "2.0+local",
            "scipy": "1.14",
            "opacus": "1.4",
            "torchmetrics": "1.9",
            "pandas": "3",
        },
        {"fedpriv": needs, "torchmetrics": ["torch-fidelity<=0.5; extra == 'image'", "lpips; extra == 'other'"]},
    )
    found = installed.installed()
    told = {one.name: (one.status, one.told) for one in found}
    assert told["fedpriv"] == ("warning", f"{fedpriv.__version__}, but 0.0.1 was installed; install it again")
    assert told["numpy"] == ("ok", "2.0+local (>=1.26)")
    assert told["scipy"] == ("failed", "1.14; expected >=99")
    assert told["absent"] == ("failed", "not installed; expected >=1")
    assert "old" not in told
    assert told["extra dp"] == ("warning", "opacus 1.4, expected >=1.5; pip install 'fedpriv[dp]'")
    assert told["extra frames"] == ("ok", "pandas 3")
    status, words = told["extra perceptual"]
    assert status == "ok"
    assert words.startswith("not installed (torch-fidelity): ")


def test_scarce_memory_warns(monkeypatch):
    monkeypatch.setattr(machine, "_bytes_of_memory", lambda: (8 << 30, 1 << 30))
    found = only(machine.machine("cpu"), "memory")
    assert (found.status, found.told) == ("warning", "1.0 GiB of 8.0 GiB are free; expected 2.0 GiB at least")
    monkeypatch.setattr(machine, "_bytes_of_memory", lambda: (None, None))
    assert only(machine.machine("cpu"), "memory").status == "ok"


def test_one_changed_pixel_of_the_embedded_data_is_found(monkeypatch):
    from fedpriv import datasets

    def changed(name):
        images = torch.zeros(1797, 1, 8, 8)
        return Dataset(name, Samples(images, torch.zeros(1797).long()), tuple("0123456789"), 1797)

    assert [one.status for one in stored.embedded_data()] == ["ok", "ok"]
    monkeypatch.setattr(datasets, "load_dataset", changed)
    found = only(stored.embedded_data(), "data: digits")
    assert found.status == "failed"
    assert "figures of this machine are not those of others" in found.told


def test_an_output_folder_is_tried(tmp_path, monkeypatch):
    there = stored.output_folder(tmp_path)
    assert (there.status, there.facts) == ("ok", {"written": True, "locks": True, "synced": True})
    assert "is not there yet" in stored.output_folder(tmp_path / "a" / "b").told
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        found = stored.output_folder(out)
        assert found.status == "failed", found
        assert str(tmp_path) not in found.told
    monkeypatch.setattr(stored, "write_json", disk_full)
    assert stored.output_folder(tmp_path).told.endswith("cannot be written: No space left on device")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def disk_full(path, value):
    raise OSError(28, "No space left on device", str(path))
