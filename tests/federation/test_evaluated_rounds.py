"""Rounds that are evaluated and rounds that are not; clients that no round has sampled, named, and left out on request."""

import pytest
from federations import files, small, train_small

from fedpriv.federation.rounds import accuracy
from fedpriv.federation.summary import Unsampled
from fedpriv.reports.runs_report import write_runs_report


def config(method="fedproto", **settings):
    public = 60 if method == "ds-fl" else 0
    own = {"alpha": 0.5, "per_class": 20, "clients": 4, "participation": 0.5, "rounds": 5, "public": public}
    return small(method, **(own | settings))


@pytest.mark.parametrize("method", ["fedproto", "ds-fl"])  # the server of the second has a model of its own
def test_what_is_evaluated_is_as_if_every_round_were(tmp_path, method):
    always, _ = train_small(tmp_path / "always", config(method, unsampled="left_out"))
    seldom, _ = train_small(tmp_path / "seldom", config(method, unsampled="left_out", evaluate_every=3, keep=(2,)))
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
        assert reached.final == always.summary.accuracy[when].final
    assert seldom.summary.rounds == 5


SETTINGS = {"per_class": 12, "clients": 5, "rounds": 2, "participation": 0.4, "models": "small-mlp", "capture": "none"}


def test_clients_of_no_round_are_named_and_can_be_left_out(tmp_path):
    plain, federation = train_small(tmp_path / "plain", small("fedavg", **SETTINGS))
    left, _ = train_small(tmp_path / "left", small("fedavg", **SETTINGS, unsampled="left_out"))
    sampled = [set(line.participants) for line in plain.rounds()]
    absent = [tuple(sorted(set(range(5)) - sampled[0])), tuple(sorted(set(range(5)) - sampled[0] - sampled[1]))]
    assert absent[1], "the seed samples everybody: the test tests nothing"
    assert federation.unsampled(1) == absent[0]
    assert [line.left_out for line in left.rounds()] == absent
    assert plain.summary.unsampled == Unsampled(clients=absent[1], batch_norm=(), treatment="counted")
    assert left.summary.unsampled == Unsampled(clients=absent[1], batch_norm=(), treatment="left_out")
    for ours, theirs in zip(left.rounds(), plain.rounds(), strict=True):
        assert ours.clients == theirs.clients  # everybody is scored; the figures are of those that count
        for when, counts in theirs.clients.items():
            kept = [pair for client, pair in enumerate(counts) if client not in ours.left_out]
            assert ours.accuracy[when] == accuracy(kept)
    reached = left.summary.accuracy["after_broadcast"]
    assert len(reached.clients) == 5 - len(absent[1])
    assert reached.pooled == sum(right for right, _ in reached.clients) / sum(n for _, n in reached.clients)
    changed = {name for name, text in files(left.path).items() if files(plain.path)[name] != text}
    assert changed == {"config.json", "metrics.jsonl"}
    write_runs_report([left.path, plain.path], tmp_path / "page")
    text = (tmp_path / "page" / "runs.html").read_text()
    assert "were sampled in no round and count in no accuracy" in text
    assert "count in every accuracy with received or first weights, never trained." in text
