"""Times told beforehand: at once, from the work itself, once, and without a trace in any result."""

import signal
import time

import pytest
import torch
from federations import DIGITS, files

import fedpriv
from fedpriv.cli.main import run
from fedpriv.experiment import probe
from fedpriv.experiment.probe import extrapolated
from fedpriv.scoring.tensor_files import load_reconstruction
from fedpriv.util import pace
from fedpriv.util.listener import Listener

QUICK = {"dataset": "digits", "per_class": 20, "clients": 3, "rounds": 3, "strangers": 0.5}


class Asking(Listener):
    """Hears of times, and of how far the work was then."""

    asks = True

    def __init__(self):
        self.times, self.done = [], 0

    def progress(self, title):
        import contextlib

        def report(done, planned, what):
            self.done = done

        return contextlib.nullcontext(report)

    def expect(self, seconds, basis, workers=1):
        self.times.append((seconds, basis, self.done))


@pytest.fixture
def eager(monkeypatch):
    """Every command is long enough to be told of."""
    monkeypatch.setattr(pace, "SOON", 0.0)


def test_the_rest_is_told_once_from_the_first_units(monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 6.0])
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(clock))
    heard, handed = Asking(), []
    report = pace.Pace(lambda *told: handed.append(told[0]), heard, "steps")
    for done in range(1, 5):
        report(done, 20, "")
    assert heard.times == [(pytest.approx(36.0), "estimated from the first 2 of 20 steps here", 0)]
    assert handed == [1, 2, 3, 4]


def test_units_are_weighed_and_those_of_before_are_left_out(monkeypatch):
    clock = iter([0.0, 3.0])
    monkeypatch.setattr(pace.time, "monotonic", lambda: next(clock))
    heard = Asking()
    report = pace.Pace(lambda *told: None, heard, "steps", share=lambda done, planned: (done / planned) ** 2)
    report.resumed(2)
    report(2, 10, "")
    report(4, 10, "")
    assert heard.times[0][0] == pytest.approx(3.0 * 0.84 / 0.12)


def test_nobody_who_does_not_ask_is_told():
    report = pace.Pace(lambda *told: None, Listener(), "steps")
    assert report.told


def test_work_is_timed_and_broken_off():
    done = []

    def begin(progress):
        time.sleep(0.05)
        for number in range(1, 1000):
            time.sleep(0.02)
            done.append(number)
            progress(number, 1000)

    began = time.monotonic()
    seconds = extrapolated(begin)
    assert time.monotonic() - began < 5
    assert len(done) < 999
    assert seconds == pytest.approx(1000 * (time.monotonic() - began) / len(done), rel=0.5)


def test_work_that_reports_nothing_is_broken_off_and_not_guessed(monkeypatch):
    monkeypatch.setattr(probe, "MOST", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    assert extrapolated(lambda progress: time.sleep(60)) is None
    assert signal.getsignal(signal.SIGALRM) == before


def test_training_tells_in_its_first_rounds_and_results_stay_the_same(tmp_path, eager):
    heard = Asking()
    fedpriv.train("fedgh", out=tmp_path / "told", listener=heard, **QUICK)
    fedpriv.train("fedgh", out=tmp_path / "silent", **QUICK)
    ((seconds, basis, done),) = heard.times
    assert seconds > 0
    assert basis == "estimated from the first 4 of 9 client steps here"
    assert done == 4
    assert files(tmp_path / "told") == files(tmp_path / "silent")


def test_attacks_are_told_of_with_their_training_and_results_stay_the_same(tmp_path, eager):
    heard = Asking()
    given = {"target": "prototype", "attacks": ["pixels"], "iterations": 30, "targets": 4, "workers": 1, **QUICK}
    told = fedpriv.attack(out=tmp_path / "told", listener=heard, **given)
    silent = fedpriv.attack(out=tmp_path / "silent", **given)
    ((_, basis, _),) = heard.times
    assert "client steps here and the first iterations of 1 attack here" in basis
    _same(told, silent)


def test_attacks_on_a_run_are_told_of_before_the_first_is_done_and_results_stay_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "STEADY", 0.0)
    trained = fedpriv.train("fedgh", out=tmp_path / "run", **QUICK)
    heard = Asking()
    given = {"target": "prototype", "attacks": ["pixels", "dip"], "iterations": 30, "targets": 4, "workers": 1}
    told = fedpriv.attack(trained, out=tmp_path / "told", listener=heard, **given)
    silent = fedpriv.attack(trained, out=tmp_path / "silent", **given)
    ((seconds, basis, done),) = heard.times
    assert seconds > 0
    assert basis == "estimated from the first iterations of 2 attacks here, at full budget and without scoring"
    assert done == 0
    _same(told, silent)


def _same(one, other):
    assert one.records.keys() == other.records.keys()
    for name, record in one.records.items():
        assert record.metrics == other.records[name].metrics
        mine, theirs = (load_reconstruction(made.path / name / "reconstruction.safetensors") for made in (one, other))
        for field in ("images", "objective", "chosen", "converged"):
            assert torch.equal(getattr(mine, field), getattr(theirs, field))


@pytest.mark.parametrize("also", [[], ["--quiet"], ["--json"]])
def test_what_is_short_tells_nothing(tmp_path, capsys, also):
    given = ["--per-class", "20", "--clients", "2", "--rounds", "1", "--out", str(tmp_path / "run"), *also]
    assert run(["train", "--method", "fedgh", *DIGITS, *given]) == 0
    assert "from here" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(("also", "told"), [([], True), (["--quiet"], False), (["--json"], False)])
def test_what_is_long_tells_on_standard_error(tmp_path, capsys, eager, monkeypatch, also, told):
    monkeypatch.setattr("fedpriv.cli.common.LONG", 0.0)
    given = ["--per-class", "20", "--clients", "2", "--rounds", "2", "--out", str(tmp_path / "run"), *also]
    assert run(["train", "--method", "fedgh", *DIGITS, *given]) == 0
    out, err = capsys.readouterr()
    assert "from here" not in out
    assert ("s from here (estimated from the first 3 of 4 client steps here)" in err) == told


def test_what_comes_before_the_first_unit_is_not_taken_for_a_unit(monkeypatch):
    monkeypatch.setattr(probe, "COMPUTED", 0.0)

    def begin(progress):
        time.sleep(0.5)
        for number in range(1, 101):
            time.sleep(0.01)
            progress(number, 100)

    assert extrapolated(begin) == pytest.approx(1.5, rel=0.4)
