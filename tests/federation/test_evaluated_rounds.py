"""Rounds that are evaluated and rounds that are not: what lines, summary and readers have of either."""

import csv

import numpy as np
import pytest
from federations import CPU, files, small, train_small

from fedpriv.federation import evaluate as module
from fedpriv.federation.engine import run_clients
from fedpriv.federation.rounds import run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pages.run_records import load_runs
from fedpriv.pages.runs_report import write_runs_report
from fedpriv.sources.federation import prepare


def config(method="fedproto", **settings):
    public = 60 if method == "ds-fl" else 0
    own = {"alpha": 0.5, "per_class": 20, "clients": 4, "participation": 0.5, "rounds": 5, "public": public}
    return small(method, **(own | settings))


@pytest.mark.parametrize("method", ["fedproto", "ds-fl"])  # the server of the second has a model of its own
def test_what_is_evaluated_is_as_if_every_round_were(tmp_path, method):
    always, _ = train_small(tmp_path / "always", config(method, unsampled="left_out"))
    seldom, _ = train_small(tmp_path / "seldom", config(method, unsampled="left_out", evaluate_every=3, keep=(2,)))
    for every, one in zip(always.rounds(), seldom.rounds(), strict=True):
        evaluated = one.round in (2, 3, 5)
        assert one.participants == every.participants
        assert one.communication == every.communication
        assert one.accuracy == (every.accuracy if evaluated else {})
        assert one.clients == (every.clients if evaluated else {})
    for when, reached in seldom.summary.accuracy.items():
        lines = [line for line in always.rounds() if line.round in (2, 3, 5)]
        assert reached.best == max(line.accuracy[when].pooled for line in lines)
        assert reached.best_round in (2, 3, 5)
        assert reached.final == always.summary.accuracy[when].final
    assert seldom.summary.rounds == 5


def test_nobody_is_looked_at_in_a_round_that_is_not_evaluated(tmp_path, monkeypatch):
    asked, correct = [], module._correct
    monkeypatch.setattr(module, "_correct", lambda *given: asked.append(len(done.rounds())) or correct(*given))
    own = config("local", evaluate_every=3)
    done = RunDirectory.create(tmp_path / "run", own)
    run(prepare(own, CPU), done, run_clients)
    assert {*asked} == {2, 4}  # rounds done before the third and the fifth


@pytest.mark.parametrize("killed_in", [1, 2, 4, 5])
def test_a_killed_run_goes_on_to_the_same_result(tmp_path, killed_in):
    asked = config(evaluate_every=3, checkpoint_every=2)
    whole, _ = train_small(tmp_path / "whole", asked)

    def dying(federation, jobs):
        if jobs[0].round == killed_in:
            raise KeyboardInterrupt
        return run_clients(federation, jobs)

    with pytest.raises(KeyboardInterrupt):
        train_small(tmp_path / "killed", asked, dying)
    run(prepare(asked, CPU), RunDirectory.open(tmp_path / "killed"), run_clients)
    assert files(tmp_path / "killed") == files(whole.path)


def test_pages_have_the_rounds_that_were_evaluated_and_all_that_was_sent_until_then(tmp_path):
    train_small(tmp_path / "always", config())
    train_small(tmp_path / "seldom", config(evaluate_every=3))
    always, seldom = load_runs([tmp_path / "always", tmp_path / "seldom"])
    there = [2, 4]
    assert seldom.rounds.tolist() == [3, 5]
    for count, unit in always.traffic:
        assert np.array_equal(seldom.cumulative(count, unit), always.cumulative(count, unit)[there])
    own, other = seldom.at("after_broadcast"), always.at("after_broadcast")
    assert np.array_equal(own.pooled, other.pooled[there])
    write_runs_report([tmp_path / "always", tmp_path / "seldom"], tmp_path / "report")
    with (tmp_path / "report" / "runs.csv").open(newline="") as table:
        every, one = (row for row in csv.DictReader(table) if row["predictor"] == "own")
    names = [name for name in every if name.endswith("_per_round")]
    assert names
    assert [one[name] for name in names] == [every[name] for name in names]
