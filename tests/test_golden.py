"""What a few federations and attacks computed when their values were stored, they compute today."""

import importlib.util
import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCRIPT = HERE.parent / "benchmarks" / "golden" / "golden.py"
ROOM = {"count": 2.0, "traffic": 0.0, "score": 1e-3}
DECIBELS = 0.01
"""Rounding differs among processors: a count may move by two images, a PSNR by this (1.4e-4 dB without AVX)."""
CHAOTIC = {"attack/prototype/dip": 0.3}
"""Searches by large steps under a network, which carry rounding on: dB by case (0.07 dB without AVX)."""


@pytest.fixture(scope="module")
def golden():
    spec = importlib.util.spec_from_file_location("golden", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_values_are_those_stored(golden, tmp_path):
    stored, values = json.loads((HERE / "golden.json").read_text(encoding="utf-8")), golden.small(tmp_path)
    assert {case: set(values[case]) for case in values} == {case: set(stored[case]) for case in stored}
    assert {key.split()[0] for case in stored.values() for key in case} == set(ROOM)
    room = {key: DECIBELS if "psnr" in key else ROOM[key.split()[0]] for case in stored.values() for key in case}
    off = {
        f"{case}: {key}": (kept, values[case][key])
        for case, quantities in stored.items()
        for key, kept in quantities.items()
        if not abs(values[case][key] - kept) <= (CHAOTIC.get(case, room[key]) if "psnr" in key else room[key])
    }
    assert off == {}


def test_a_difference_is_seen(golden):
    """Of each kind, a little more than it may be; and what only one side has."""
    base = {"count 1": 5, "traffic 1": 10, "score a": 2.0, "image b": [0.5, 0.25], "verdict": "leak", "row r": "dip"}
    assert golden.compare("train/x", base, dict(base), True)[0] == "equal"
    assert golden.compare("train/x", base, base | {"count 1": 7, "score a": 2.001}, True)[0].startswith("within")
    moved = {"count 1": 8, "traffic 1": 11, "score a": 2.01, "image b": [0.5, 0.26], "verdict": "none", "row r": "dlg"}
    wrong = [base | {key: value} for key, value in (moved | {"score a": float("nan"), "image b": [0.5]}).items()]
    wrong += [base | {key: value} for key, value in moved.items()]
    wrong += [{key: value for key, value in base.items() if key != lost} for lost in base if lost != "score a"]
    assert [golden.compare("train/x", base, head, True)[0] for head in wrong] == ["DIFFERS"] * len(wrong)
    assert golden.compare("attack/x/membership", base, base | {"score a": 3.0}, True)[0] == "expected"
    assert golden.compare("train/x", {}, {}, True)[0] == "DIFFERS"
