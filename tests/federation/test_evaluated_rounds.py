"""Rounds that are evaluated and rounds that are not: what lines, summary and readers have of either."""

import pytest
from federations import CPU, files, small, train_small

from fedpriv.federation.rounds import run, run_clients
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.sources.run import prepare


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
