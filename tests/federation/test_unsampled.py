"""Clients that no round has sampled: told, left out, or given batch-norm statistics of their own images."""

import pytest
import torch
from compare import expect_close, expect_same
from federations import files, small, train_small
from torch import nn

from fedpriv.datasets.types import Samples
from fedpriv.federation.evaluate import accuracy, unsampled_warning, unsampled_words, with_own_statistics
from fedpriv.federation.method import ClientSetup, LocalTraining, NoOptions
from fedpriv.federation.states import take
from fedpriv.federation.summary import RoundAccuracy, Unsampled
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.pages.run_records import load_runs
from fedpriv.pages.runs_report import write_runs_report


def normalised(images):
    model = SplitModel(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), nn.Identity(), nn.Linear(4, 2))
    blueprint = Blueprint("by hand", (1, 2, 2), 2, 4)
    train = Samples(images, torch.zeros(len(images), dtype=torch.int64))
    return ClientSetup(0, blueprint, model, train, LocalTraining(), NoOptions(), lambda wanted: model)


def seen(images):
    """Images in [0, 1] as networks take them: in [-1, 1]."""
    return 2 * images - 1


def test_statistics_are_those_of_the_clients_own_images_and_nothing_else_changes():
    images = 5 + 2 * torch.randn(30, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    setup = normalised(images)
    state = take(setup.model, "model") | {"other": torch.ones(2)}
    frozen, before = {name: value.clone() for name, value in state.items()}, torch.get_rng_state()
    found = with_own_statistics(setup, state)
    expect_close(found["model.extractor.0.running_mean"], seen(images).mean((0, 2, 3)))
    expect_close(found["model.extractor.0.running_var"], seen(images).var((0, 2, 3)))
    statistics = ("running_mean", "running_var", "num_batches_tracked")
    for name, value in frozen.items():
        expect_same(state[name], value)
        if not name.endswith(statistics):
            expect_same(found[name], value)
    expect_same(before, torch.get_rng_state())
    layer = setup.model.extractor[0]
    assert layer.momentum == 0.1


def test_large_sets_are_taken_in_equal_chunks():
    images = torch.randn(400, 1, 2, 2, generator=torch.Generator().manual_seed(3))
    found = with_own_statistics(normalised(images), take(normalised(images).model, "model"))
    halves = torch.stack([half.var((0, 2, 3)) for half in seen(images).split(200)])
    expect_close(found["model.extractor.0.running_var"], halves.mean(0))


def test_without_batch_norm_or_a_private_model_the_state_is_the_state():
    setup = normalised(torch.rand(4, 1, 2, 2))
    state = {"other": torch.ones(2)}
    assert with_own_statistics(setup, state) is state


def test_accuracy_without_some_clients_by_hand():
    assert accuracy([[1, 2], [0, 9], [3, 3]], left_out=(1,)) == RoundAccuracy(pooled=4 / 5, mean_over_clients=0.75)


ROUNDS = 2
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
    (record,) = load_runs([left.path])
    assert record.at("after_broadcast").pooled.tolist() == [
        line.accuracy["after_broadcast"].pooled for line in left.rounds()
    ]
    assert record.at("after_training").mean[-1] == pytest.approx(
        left.summary.accuracy["after_training"].mean_over_clients
    )
    write_runs_report([left.path, plain.path], tmp_path / "page")
    for page in ("runs.html", "runs.md"):
        text = (tmp_path / "page" / page).read_text()
        assert "were sampled in no round and count in no accuracy" in text
        assert "count in every accuracy with received or first weights, never trained." in text


def test_own_statistics_change_the_scores_of_clients_of_no_round_alone(tmp_path):
    settings = SETTINGS | {"models": "resnet18", "image_size": 8, "per_class": 30, "clients": 3, "width": 8}
    settings |= {"rounds": ROUNDS, "training": LocalTraining(learning_rate=0.05, epochs=2)}
    plain, federation = train_small(tmp_path / "plain", small("fedavg", **settings))
    own, _ = train_small(tmp_path / "own", small("fedavg", **settings, unsampled="own_statistics"))
    for ours, theirs in zip(own.rounds(), plain.rounds(), strict=True):
        absent = federation.unsampled(ours.round)
        for when, counts in theirs.clients.items():
            assert all(ours.clients[when][k] == counts[k] for k in range(3) if k not in absent)
    found = own.summary.unsampled
    assert found.clients == found.batch_norm == federation.unsampled(ROUNDS) != ()
    assert own.rounds() != plain.rounds()  # the statistics of no image classified otherwise
    assert {name for name, text in files(own.path).items() if files(plain.path)[name] != text} <= {
        "config.json", "metrics.jsonl", *(name for name in files(own.path) if name.endswith("evaluation.json"))
    }  # fmt: skip


def test_what_readers_are_told():
    facts = {"clients": (2, 5), "batch_norm": (2,)}
    told = unsampled_words(Unsampled(**facts, treatment="counted"), 10)
    assert "2 of 10 clients (2, 5)" in told
    assert "1 of them with batch-norm statistics of no image" in told
    assert "statistics of their own images" in unsampled_words(Unsampled(**facts, treatment="own_statistics"), 10)
    line = unsampled_warning(Unsampled(**facts, treatment="counted"), 10)
    assert "are sampled in no round" in line
    assert line.endswith("see unsampled='left_out' or unsampled='own_statistics'")
    many = Unsampled(clients=tuple(range(20)), batch_norm=(), treatment="counted")
    assert "(0, 1, 2, 3, 4, 5, 6, 7, ...)" in unsampled_warning(many, 30)
    assert unsampled_warning(many, 30).endswith("see unsampled='left_out'")
