"""Rounds that are evaluated and rounds that are not; clients that no round has sampled, named."""

import pytest
from federations import small, train_small

from fedpriv.reports.runs_report import write_runs_report


def config(method="fedproto", **settings):
    public = 60 if method == "ds-fl" else 0
    own = {"alpha": 0.5, "per_class": 20, "clients": 4, "participation": 0.5, "rounds": 5, "public": public}
    return small(method, **(own | settings))


@pytest.mark.parametrize("method", ["fedproto", "ds-fl"])  # the server of the second has a model of its own
def test_what_is_evaluated_is_as_if_every_round_were(tmp_path, method):
    always, _ = train_small(tmp_path / "always", config(method))
    seldom, _ = train_small(tmp_path / "seldom", config(method, evaluate_every=3, keep=(2,)))
    for every, one in zip(always.rounds(), seldom.rounds(), strict=True):
        evaluated = one.round in (3, 5)
        assert one.participants == every.participants
        assert one.communication == every.communication
        assert one.accuracy == (every.accuracy if evaluated else {})
        assert one.clients == (every.clients if evaluated else {})
    for when, reached in seldom.summary.accuracy.items():
        lines = [line for line in always.rounds() if line.round in (3, 5)]
        assert reached.best == max(line.accuracy[when].pooled for line in lines)
        assert reached.best_round in (3, 5)
        assert reached.pooled == always.summary.accuracy[when].pooled
    assert seldom.summary.rounds == 5


SETTINGS = {"per_class": 12, "clients": 5, "rounds": 2, "participation": 0.4, "models": "small-mlp", "capture": "none"}


def test_clients_of_no_round_are_named_and_counted(tmp_path):
    plain, federation = train_small(tmp_path / "plain", small("fedavg", **SETTINGS))
    sampled = [set(line.participants) for line in plain.rounds()]
    absent = [tuple(sorted(set(range(5)) - sampled[0])), tuple(sorted(set(range(5)) - sampled[0] - sampled[1]))]
    assert absent[1], "the seed samples everybody: the test tests nothing"
    assert federation.unsampled(1) == absent[0]
    assert plain.summary.unsampled == absent[1]
    reached = plain.summary.accuracy["after_broadcast"]
    assert len(reached.clients) == 5
    assert reached.pooled == sum(right for right, _ in reached.clients) / sum(n for _, n in reached.clients)
    write_runs_report([plain.path], tmp_path / "page")
    text = (tmp_path / "page" / "runs.html").read_text()
    assert "were sampled in no round and count with received or first weights, never trained." in text
