"""Comparisons of speed: sides take turns, ratios are of pairs, what is missing is said, an interrupt loses one pair."""

import contextlib
import os

import benchmark_cases
import pytest
from benchmark_cases import GOAL, OURS, PAIR, comparison
from command_line import call

import fedpriv
from fedpriv.experiment import benchmarks
from fedpriv.experiment.benchmarks import COMPARISONS, judging
from fedpriv.experiment.benchmarks.contract import Asked, Case, Goal, Side
from fedpriv.experiment.benchmarks.judging import judged
from fedpriv.experiment.benchmarks.peak import CONVOLUTION, MATRIX
from fedpriv.pages.benchmark_page import benchmark_markdown
from fedpriv.scoring.storage import load_benchmark
from fedpriv.util.listener import Listener


@pytest.fixture
def made_up(monkeypatch):
    """A function that takes a comparison, or several by name, as all that there are."""

    def only(found, **others):
        known = {"made-up": found, **others}
        for name, one in known.items():
            monkeypatch.setattr(benchmark_cases, name.replace("-", "_"), one, raising=False)
        places = {name: f"benchmark_cases:{name.replace('-', '_')}" for name in known}
        monkeypatch.setattr(COMPARISONS, "builtins", places)

    return only


def turns_in(log):
    return [line.split()[0] for line in log.read_text().splitlines()] if log.exists() else []


def alive(log):
    found = []
    for line in set(log.read_text().splitlines()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line.split()[1]), 0)
            found.append(line)
    return found


# ---------------------------------------------------------------- as a whole


def test_sides_take_turns_and_ratios_are_of_pairs(made_up, tmp_path):
    log = tmp_path / "log"
    made_up(comparison(*PAIR, log=log))
    found = fedpriv.benchmark(out=tmp_path / "out", device="cpu")
    (case,) = found.record.cases
    assert turns_in(log) == ["ours", "theirs"] * 3  # the first of each is not measured
    assert case.sides[0].figure.values == (2.0, 2.0)
    assert case.sides[0].rate.values == (5.0, 5.0)
    assert case.ratios[0].says == "times as fast as other"
    assert case.ratios[0].spread.values == (2.5, 3.0)  # the other's turns after its first
    assert (case.ratios[0].spread.min, case.ratios[0].spread.max) == (2.5, 3.0)
    assert case.goal.verdict == "met"
    assert not found.failed
    assert alive(log) == []
    assert load_benchmark(found.path / "benchmark.json") == found.record
    assert {path.name for path in found.path.iterdir()} >= {"asked.json", "turns.jsonl", "benchmark.json"}
    assert not any("scratch" in path.name for path in found.path.iterdir())
    assert found.record.machine.cores >= 1
    assert os.uname().nodename not in found.record.model_dump_json()
    assert str(tmp_path) not in found.record.model_dump_json()


def test_a_peer_that_is_not_there_is_named_and_ours_is_measured(made_up, tmp_path, capsys):
    made_up(comparison(("fedpriv", OURS), ("other", "benchmark_cases:missing")))
    code, out, _ = call(capsys, "benchmark", "--device", "cpu", "--out", tmp_path / "out")
    (case,) = load_benchmark(tmp_path / "out" / "benchmark.json").cases
    assert code == 0
    assert "other: not importable; pip install other" in " ".join(out.split())
    assert case.sides[0].figure.median == 2.0
    assert (case.sides[1].figure, case.sides[1].failed, case.ratios) == (None, False, ())
    assert (case.goal.verdict, case.goal.why) == ("cannot be told", "other: not importable; pip install other")


@pytest.mark.parametrize(
    ("work", "why"),
    [
        ("failing", "ValueError: two lines of it"),
        ("dying", "its process ended with exit code 3"),
        ("nowhere", "nowhere"),
    ],
)
def test_work_that_fails_is_told_in_a_line_and_the_rest_goes_on(made_up, tmp_path, capsys, work, why):
    made_up(comparison(("fedpriv", f"benchmark_cases:{work}"), pairs=1), other=comparison(PAIR[0], pairs=1))
    code, _, _ = call(capsys, "benchmark", "--device", "cpu", "--out", tmp_path / "out")
    first, second = load_benchmark(tmp_path / "out" / "benchmark.json").cases
    assert code == 1
    assert why in first.sides[0].not_measured
    assert first.sides[0].failed
    assert "\n" not in first.sides[0].not_measured
    assert second.sides[0].figure.median == 2.0


def test_what_libraries_print_reaches_no_terminal(made_up, tmp_path, capfd):
    made_up(comparison(("fedpriv", "benchmark_cases:talking"), pairs=1))
    assert not fedpriv.benchmark(out=tmp_path / "out", device="cpu").failed
    out, err = capfd.readouterr()
    assert "to standard" not in out + err


class Interrupting(Listener):
    """Interrupts after so many pieces of news."""

    def __init__(self, after):
        self.after = after

    @contextlib.contextmanager
    def progress(self, title):
        def report(done, planned, what):
            self.after -= 1
            if self.after == 0:
                raise KeyboardInterrupt

        yield report


def test_an_interrupted_benchmark_goes_on_where_it_stopped(made_up, tmp_path):
    log, out = tmp_path / "log", tmp_path / "out"
    made_up(comparison(*PAIR, log=log, pairs=3))
    with pytest.raises(KeyboardInterrupt):
        fedpriv.benchmark(out=out, device="cpu", listener=Interrupting(after=3))  # warming up, pair 1, pair 2
    assert turns_in(log) == ["ours", "theirs"] * 2  # one to warm up, one measured
    assert alive(log) == []
    assert not (out / "benchmark.json").exists()
    with pytest.raises(fedpriv.UserError, match="was asked for with other repeats, seed"):
        fedpriv.benchmark(out=out, device="cpu", resume=True, repeats=5, seed=1)
    found = fedpriv.benchmark(out=out, device="cpu", resume=True)
    assert turns_in(log) == ["ours", "theirs"] * (2 + 3)  # warmed up again, two measured
    assert len(found.record.cases[0].sides[0].figure.values) == 3
    assert [path.name for path in out.iterdir() if "scratch" in path.name] == []
    again = fedpriv.benchmark(out=out, device="cpu", resume=True)
    assert again.record == found.record  # nothing is measured that is there


def test_an_interrupt_names_the_command_that_goes_on(made_up, tmp_path, monkeypatch, capsys):
    made_up(comparison(*PAIR))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedpriv", "benchmark", "--device", "cpu"])

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedpriv.experiment.verbs.benchmarking.measure", interrupted)
    code, _, err = call(capsys, "benchmark", "--device", "cpu")
    assert code == 130
    assert "go on with: fedpriv benchmark --device cpu --out results/benchmark --resume" in err


def test_the_command_prints_tables_json_or_lines(made_up, tmp_path, capsys):
    made_up(comparison(*PAIR, pairs=1))
    code, out, _ = call(capsys, "benchmark", "made-up", "--device", "cpu", "--quiet", "--out", tmp_path / "a")
    assert (code, out) == (0, "made-up, case, cpu: 2.50 times as fast as other; goal at least 1.5: met\n")
    code, out, _ = call(capsys, "benchmark", "--list", "--json")
    assert code == 0
    assert '"name": "made-up"' in out
    code, out, _ = call(capsys, "benchmark", "--device", "cpu", "--json", "--out", tmp_path / "b")
    assert code == 0
    assert '"kind": "benchmark"' in out
    code, _, err = call(capsys, "benchmark", "--device", "cpu", "--out", tmp_path / "b")
    assert code == 2
    assert "already exists" in err


# ---------------------------------------------------------------- judging


def one_case(goal=GOAL, **changes):
    sides = (Side("fedpriv", OURS, units=100), Side("other", OURS, units=100))
    return Case("case", sides, **({"goal": goal, "unit": "targets"} | changes))


def told(ours, theirs, **more):
    return {"fedpriv": {"cpu": ours, **more}, "other": {"cpu": theirs}}


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [([(1, 2), (1, 3)], "met"), ([(1, 1), (1, 1.4)], "not met"), ([(1, 1), (1, 3)], "cannot be told")],
)
def test_a_goal_is_met_where_every_pair_meets_it(pairs, verdict):
    found = judged("x", one_case(), {}, [told(*pair) for pair in pairs])
    assert found.goal.verdict == verdict
    assert bool(found.goal.why) == (verdict == "cannot be told")


def test_a_share_of_what_the_other_takes_is_small_where_we_are_fast():
    goal = Goal("at most 0.6 of the other's", at_most=0.6)
    found = judged("x", one_case(goal, faster=False), {}, [told(1.0, 2.0), told(1.1, 2.0)])
    assert found.ratios[0].says == "as much as other"
    assert found.ratios[0].spread.values == (0.5, 0.55)
    assert found.goal.verdict == "met"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"smaller": "of more"}, "of more"),
        ({"device": "cuda"}, "of a CPU"),
        ({"goal": Goal("on 3 cores", at_least=1.5, cores=3)}, "of a machine with 3 cores; this one has 2"),
    ],
)
def test_a_goal_of_something_else_cannot_be_told(changes, why, monkeypatch):
    monkeypatch.setattr(judging, "cores", lambda: 2)
    found = judged("x", one_case(**changes), {}, [told(1, 2)])
    assert (found.goal.verdict, found.goal.why) == ("cannot be told", why)


def test_a_case_without_another_side_is_judged_by_its_own_figure():
    alone = Case("case", (Side("fedpriv", OURS),), clock="wall seconds", goal=Goal("under 100 s", at_most=100.0))
    found = judged("x", alone, {}, [{"fedpriv": {"cpu": 150.0, "wall": 90.0}}])
    assert (found.sides[0].figure.median, found.goal.verdict) == (90.0, "met")


def test_the_share_of_the_peak_is_of_the_fewest_operations_and_the_better_peak():
    warm = {"fedpriv": {"cpu": 1.0, "operations": 60e9}, "other": {"cpu": 1.0, "operations": 30e9}}
    turn = {**told(2.0, 4.0), MATRIX: {"cpu": 1.0, "gflops": 150.0}, CONVOLUTION: {"cpu": 1.0, "gflops": 100.0}}
    found = judged("x", one_case(), warm, [turn])
    assert found.sides[0].gflop == 60.0
    assert found.peak_share.median == pytest.approx(30 / 2 / 150)


# ---------------------------------------------------------------- the comparisons that there are


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_case_has_a_name_of_its_own_and_work_that_can_be_found(full, device):
    for name in COMPARISONS.builtins:
        cases = COMPARISONS.load(name).cases(Asked(full, device))
        assert len({case.name for case in cases}) == len(cases), name
        for case in cases:
            assert len({side.name for side in case.sides}) == len(case.sides), case.name
            for side in case.sides:
                module, _, function = side.work.partition(":")
                assert callable(getattr(__import__(module, fromlist=[function]), function))
                assert side.settings.get("device", device) == device


def test_the_goals_are_those_that_the_project_asks_of_itself():
    goals = {
        (name, case.name): case.goal.at_most or case.goal.at_least
        for name in COMPARISONS.builtins
        for case in COMPARISONS.load(name).cases(Asked(full=True))
        if case.goal is not None
    }
    federated = {"local": 0.6, "lg-fedavg": 0.6, "fedgh": 0.6, "fedproto": 0.75, "fedmrl": 0.75, "fedkd": 0.45}
    assert {case: goal for (name, case), goal in goals.items() if name == "federated-round"} == federated
    assert goals["inverting-gradients", "LeNet, 1 target"] == 2
    assert goals["inverting-gradients", "cnn4, 1 target"] == 2
    assert {goals["inverting-gradients", f"LeNet, {many} targets"] for many in (8, 32)} == {6}
    assert {goals["inverting-gradients", f"cnn4, {many} targets"] for many in (8, 32)} == {4}
    assert (goals["dlg", "LeNet, 1 target"], goals["dlg", "LeNet, 8 targets"]) == (1.2, 2.5)
    assert goals["dip", "8 targets"] == 3
    assert goals["main-command", "entangled"] == 100
    assert {goal for (name, _), goal in goals.items() if name == "suites"} == {180}
    assert goals["memory", "500 clients"] == 1.1
    assert goals["scoring", "500 targets of 64x64"] == 10
    assert goals["start-up", "fixed cost of a study"] == 3


def test_suites_are_of_every_kind_of_upload_that_has_attacks():
    from fedpriv.experiment.benchmarks.commands import TARGETS

    told = fedpriv.catalogue("targets").members
    assert set(TARGETS) == {name for name, facts in told.items() if not facts["attacks"].startswith("none")}


def test_a_page_has_columns_for_a_gpu_that_are_empty_without_one(made_up, tmp_path):
    made_up(comparison(*PAIR, pairs=1))
    record = fedpriv.benchmark(out=tmp_path / "out", device="cpu").record
    (row,) = [line for line in benchmark_markdown(record).splitlines() if line.startswith("| case |")][:1]
    assert row.count("GPU") == 3
    (row,) = [line for line in benchmark_markdown(record).splitlines() if line.startswith("| case | 5.00")]
    assert row.endswith("| – | – | – |")
    on_gpu = record.cases[0].model_copy(update={"device": "cuda", "unit": "wall seconds"})
    both = record.model_copy(update={"cases": (record.cases[0], on_gpu)})
    (row,) = [line for line in benchmark_markdown(both).splitlines() if line.startswith("| case | 5.00")]
    assert row.endswith("| 5.00 targets / s | 2.50 times as fast as other | – |")


def test_the_list_of_comparisons_is_in_the_order_of_the_registry():
    assert [one["name"] for one in benchmarks.comparisons()] == list(COMPARISONS.builtins)
