"""One budget of seconds for a suite: how it is divided, that it is kept, and that one too small is no verdict."""

import json

import pytest
from federations import DIGITS
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.cli.main import run
from fedpriv.experiment.probe import Timed, _parts
from fedpriv.experiment.spending import MOST, Spent, divide

SMALL = [*DIGITS, "--per-class", "20", "--clients", "5", "--partition", "iid", "--rounds", "2", "--quiet"]
SECONDS = st.floats(1e-3, 1e4)


@given(SECONDS, st.dictionaries(st.sampled_from("abcdef"), SECONDS, min_size=1))
def test_searches_take_the_budget_together_and_equal_seconds_each_unless_they_have_their_fill(seconds, costs):
    shares = divide(seconds, costs)
    taken = {name: shares[name] * cost for name, cost in costs.items()}
    assert set(shares) == set(costs)
    assert all(0 < share <= MOST * (1 + 1e-9) for share in shares.values())
    assert sum(taken.values()) <= seconds * (1 + 1e-9)
    hungry = [taken[name] for name, share in shares.items() if share < MOST * (1 - 1e-9)]
    if hungry:
        assert sum(taken.values()) == pytest.approx(seconds)
        assert max(hungry) == pytest.approx(min(hungry))
        assert all(taken[name] <= hungry[0] * (1 + 1e-9) for name in costs)


def test_more_seconds_never_leave_a_search_less():
    costs = {"dip": 20.0, "pixels": 10.0, "decoder": 1.0}
    before = dict.fromkeys(costs, 0.0)
    for seconds in (1, 10, 30, 60, 100, 200, 1000):
        now = divide(seconds, costs)
        assert all(now[name] >= before[name] - 1e-12 for name in costs)
        before = now
    assert before == dict.fromkeys(costs, MOST)


def test_only_a_search_that_is_left_less_than_half_says_why_it_says_little():
    assert Spent("dip", "iterations", 400, 200).caveat(60) == ""
    told = Spent("dip", "iterations", 400, 199).caveat(60)
    assert told == "a budget of 60 seconds for all attacks left it 199 of its usual 400 iterations"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("spending") / "run"
    assert run(["train", "--method", "fedproto", *SMALL, "--capture", "all", "--out", str(path)]) == 0
    return path


def attacked(trained, out, *more):
    words = ["attack", "--target", "prototype", "--run", str(trained), "--targets", "5", "--out", str(out)]
    return run([*words, "--attack", "dip", "--attack", "pixels", "--workers", "1", *more])


def test_a_budget_too_small_is_no_verdict_and_is_kept_for_those_who_go_on(trained, tmp_path, capsys):
    assert attacked(trained, tmp_path / "r", "--budget-seconds", "0.000001", "--json") == 0
    said = capsys.readouterr()
    assert "0.000001" in said.err or "1e-06 seconds are" in said.err
    verdicts = json.loads(said.out)["verdicts"]
    for name in ("dip", "pixels"):
        metrics, about = (
            json.loads((tmp_path / "r" / name / f"{part}.json").read_text()) for part in ("metrics", "about")
        )
        assert about["options"]["iterations"] == 1
        assert f"left it 1 of its usual {400 if name == 'dip' else 3000} iterations" in metrics["caveat"]
    assert {one["kind"] for one in (verdicts.values() if isinstance(verdicts, dict) else verdicts)} == {"untested"}
    assert json.loads((tmp_path / "r" / "spending.json").read_text()) == {"dip": 1, "pixels": 1}


def test_iterations_are_given_what_training_leaves_of_the_budget(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedpriv.experiment.spending.timed", lambda *_: Timed(training=4.0, start=1.0, step=0.05))
    words = [
        "attack",
        "--target",
        "prototype",
        "--run",
        str(trained),
        "--targets",
        "5",
        "--workers",
        "1",
        "--no-control",
    ]
    words += ["--attack", "pixels"]
    assert run([*words, "--out", str(tmp_path / "some"), "--budget-seconds", "10"]) == 0
    assert json.loads((tmp_path / "some" / "spending.json").read_text()) == {"pixels": 100}
    assert "too few" not in capsys.readouterr().out
    assert run([*words, "--out", str(tmp_path / "none"), "--budget-seconds", "4"]) == 0
    assert json.loads((tmp_path / "none" / "spending.json").read_text()) == {"pixels": 1}
    assert "4 seconds are too few: about 5 go by before the first iterations" in capsys.readouterr().out


def test_the_parts_of_a_search_are_told_apart_by_trials_from_end_to_end():
    asked = []

    def took(iterations):
        asked.append(iterations)
        return (3.0 if len(asked) == 1 else 0.0) + 0.5 + 0.02 * iterations

    assert _parts(took, 300) == Timed(training=3.0, start=0.5, step=0.02)
    assert asked == [1, 1, 15, 75]  # until the difference is clear
    assert _parts(lambda iterations: 1.0, 1).start == pytest.approx(1.0, abs=1e-5)
    assert _parts(lambda iterations: None, 300) is None
    assert _parts(lambda iterations: 1.0 if iterations == 1 else None, 300) is None


def test_a_budget_reaches_every_stage_of_a_search_and_the_record_counts_them(tmp_path):
    """``learned`` finds the images of a mean together first: of an iteration of its own there are two of these."""
    out = tmp_path / "r"
    words = ["attack", "--target", "prototype", "--method", "fedproto", *SMALL, "--strangers", "0.5", "--targets", "5"]
    words += ["--attack", "learned", "--budget-seconds", "0.000001", "--no-control", "--workers", "1"]
    assert run([*words, "--out", str(out)]) == 0
    about, metrics = (json.loads((out / "learned" / f"{part}.json").read_text()) for part in ("about", "metrics"))
    assert about["options"]["iterations"] == 1
    assert metrics["cost"]["iterations"] == metrics["cost"]["evaluations"] == 3


def interrupted(*_):
    raise KeyboardInterrupt


def test_an_interrupted_suite_goes_on_with_the_iterations_that_it_was_given(trained, tmp_path, monkeypatch):
    asked = ["--budget-seconds", "0.000001", "--quiet"]
    with monkeypatch.context() as broken:
        broken.setattr("fedpriv.experiment.execution._attack", interrupted)
        assert attacked(trained, tmp_path / "r", *asked) == 130
    monkeypatch.setattr("fedpriv.experiment.spending.timed", lambda *_: pytest.fail("timed again"))
    assert attacked(trained, tmp_path / "r", *asked, "--resume") == 0
    for name in ("dip", "pixels"):
        assert json.loads((tmp_path / "r" / name / "about.json").read_text())["options"]["iterations"] == 1


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--budget-seconds", "0"], "--budget-seconds 0.0: expected a number of seconds above 0"),
        (["--budget-seconds", "nan"], "--budget-seconds nan: expected a number of seconds above 0"),
        (["--budget-seconds", "9", "--iterations", "3"], "--budget-seconds and --iterations exclude each other"),
        (["--budget-seconds", "9", "--budget", "3,4"], "--budget-seconds and --budget exclude each other"),
    ],
)
def test_other_budgets_are_refused(trained, tmp_path, capsys, more, told):
    assert attacked(trained, tmp_path / "r", *more) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_a_suite_that_does_not_search_has_no_use_for_a_budget(trained, tmp_path, capsys):
    words = ["attack", "--target", "prototype", "--run", str(trained), "--attack", "property", "--out"]
    assert run([*words, str(tmp_path / "r"), "--budget-seconds", "9"]) == 2
    assert "property has no budget; drop the flag" in capsys.readouterr().err
