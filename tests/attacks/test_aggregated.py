"""Means over clients: one larger batch in one round, equations for each client over rounds; nothing where nobody changes."""

from dataclasses import replace

import pytest
import torch
from compare import expect_close
from gradient_cases import CPU, RATE, clients, images_and_labels, knowledge_of, psnr, sigmoid_net

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.disaggregation import Disaggregation, LayerDisaggregation, taken_apart
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.secure_sum import PooledBatch
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, TargetId, ThreatModel
from fedpriv.sources.shuffled import mean_upload, summed, summed_without_own
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Classifier

LABELS = torch.tensor([3, 7, 1])


def aggregated(batch_size=1):
    model, (images, _) = sigmoid_net(), images_and_labels(3 * batch_size)
    labels = LABELS.repeat_interleave(batch_size)
    return model, images, labels, clients(model, images, labels, batch_size)


def targets_of(seen):
    return tuple(TargetId(one.round, one.client) for one in seen)


# ---------------------------------------------------------------- one round


def test_three_clients_images_come_back_from_the_mean_of_their_updates_each_to_its_owner():
    model, images, labels, separate = aggregated()
    seen = summed(separate)
    found = PooledBatch(search="dlg", iterations=600)(
        seen, knowledge_of(model, labels), targets_of(seen), seed=0, device=CPU
    )
    assert float(psnr(found.images[:, 0], images).min()) > 30
    assert found.labels[:, 0].tolist() == labels.tolist()
    assert found.cost.rows == 1  # one search for all three
    alone = DeepLeakage(outer_steps=30, redraws=2)(
        seen, knowledge_of(model, labels), targets_of(seen), seed=0, device=CPU
    )
    assert float(psnr(alone.images[:, 0], images).max()) < 20  # what takes the mean for the upload of one


def test_a_mean_without_the_client_gives_nothing_of_it():
    model, images, labels, separate = aggregated()
    control = summed_without_own(separate)
    knowledge = knowledge_of(model, labels)
    found = PooledBatch(search="dlg", iterations=60)(control, knowledge, targets_of(control), seed=0, device=CPU)
    assert float(psnr(found.images[:, 0], images).max()) < 20
    assert found.cost.rows == 3  # every client's control is another


def test_what_is_no_mean_of_one_step_on_known_labels_is_refused():
    model, _, labels, separate = aggregated()
    attack, seen = PooledBatch(), summed(separate)
    with pytest.raises(UserError, match="sees the upload of each client"):
        attack.select(separate, targets_of(separate))
    assert attack.select(seen, targets_of(seen)) == targets_of(seen)
    with pytest.raises(UserError, match="several local steps"):
        attack(seen, replace(knowledge_of(model, labels), batch=BatchFacts(1, RATE, 2)), targets_of(seen))
    fewer = {place: own for place, own in knowledge_of(model, labels).labels.items() if place[1] != 2}
    with pytest.raises(UserError, match="labels of client 2 in round 0"):
        attack(seen, replace(knowledge_of(model, labels), labels=fewer), targets_of(seen))


# ---------------------------------------------------------------- over rounds


def heads(changes, taking_part, drift=0.0, seed=0):
    """Rounds of means over clients whose update of a head is always the same, up to a drift that all have in common."""
    rng = torch.Generator().manual_seed(seed)
    sent = Classifier({"weight": torch.randn(4, 6, generator=rng), "bias": torch.randn(4, generator=rng)})
    seen = []
    for number, group in enumerate(taking_part, start=1):
        common = drift * torch.randn(4, 6, generator=rng)
        own = {
            k: Classifier(
                {"weight": sent.state["weight"] + changes[k] + common, "bias": sent.state["bias"] + changes[k][:, 0]}
            )
            for k in group
        }
        mean = mean_upload([(one,) for one in own.values()])
        seen += [Observation(number, k, mean, (sent,)) for k in group]
    return tuple(seen), sent


def changes_of(n_clients):
    return torch.randn(n_clients, 4, 6, generator=torch.Generator().manual_seed(9))


def apart(seen, clients):
    """What is taken apart of clients, and who is told from others."""
    last = max(one.round for one in seen)
    targets = tuple(TargetId(last, client) for client in clients)
    parts, told = taken_apart(problem(seen, Knowledge(ThreatModel(), (1, 1, 6), 4), targets))
    return parts, {client for client, one in zip(clients, told.tolist(), strict=True) if one}


def error(parts, sent, changes, client):
    upload = next(one for one in parts if one.client == client).upload[0]
    return float((upload.state["weight"] - sent.state["weight"] - changes[client]).norm() / changes[client].norm())


def test_clients_that_change_are_told_apart_exactly():
    changes = changes_of(3)
    seen, sent = heads(changes, [(0, 1), (1, 2), (0, 2), (0, 1)])
    parts, told = apart(seen, [0, 1])
    assert max(error(parts, sent, changes, k) for k in (0, 1)) < 1e-4
    assert told == {0, 1}


def test_who_always_comes_together_stays_together():
    changes = changes_of(3)
    seen, sent = heads(changes, [(0, 1), (0, 1, 2), (0, 1), (0, 1, 2)])
    parts, told = apart(seen, [0, 1, 2])
    assert told == {2}
    both = changes[:2].mean(0)
    upload = next(one for one in parts if one.client == 0).upload[0]
    expect_close(upload.state["weight"] - sent.state["weight"], both, atol=1e-3)


def test_the_same_clients_in_every_round_are_one_equation():
    seen, _ = heads(changes_of(3), [(0, 1, 2)] * 5)
    with pytest.raises(UserError, match="one equation for all of them"):
        apart(seen, [0])


def test_rounds_that_hold_nothing_of_a_client_tell_nothing_of_it():
    changes = changes_of(3)
    groups = [(0, 1), (1, 2), (0, 2), (0, 1, 2)]
    seen, sent = heads(changes, groups)
    alone = {number: [k for k in group if k != 0] for number, group in enumerate(groups, start=1)}
    others = tuple(
        replace(
            one,
            upload=mean_upload(
                [
                    (
                        Classifier(
                            {"weight": sent.state["weight"] + changes[k], "bias": sent.state["bias"] + changes[k][:, 0]}
                        ),
                    )
                    for k in alone[one.round]
                ]
            ),
        )
        for one in seen
    )
    assert error(apart(seen, [0])[0], sent, changes, 0) < 1e-4
    assert error(apart(others, [0])[0], sent, changes, 0) > 0.7


def test_images_are_matched_to_the_part_of_their_client():
    model, (images, _) = sigmoid_net(), images_and_labels(3)
    separate = clients(model, images, LABELS)
    groups = [(0, 1), (1, 2), (0, 2)]
    seen = tuple(
        replace(one, round=number)
        for number, group in enumerate(groups)
        for one in summed([separate[k] for k in group])
    )
    knowledge = Knowledge(
        ThreatModel(rounds_seen=3), (1, 8, 8), 10, model=model, batch=BatchFacts(1, RATE, 1),
        labels={(2, k): LABELS[k : k + 1] for k in (0, 2)},
    )  # fmt: skip
    wanted = (TargetId(2, 0), TargetId(2, 2))
    found = Disaggregation(search="dlg", iterations=600)(seen, knowledge, wanted, seed=0, device=CPU)
    assert float(psnr(found.images[:, 0], images[[0, 2]]).min()) > 30


def test_a_layers_update_leads_to_class_means_of_its_own_client():
    rng = torch.Generator().manual_seed(1)
    features = torch.rand(3, 6, generator=rng)
    head = Classifier({"weight": torch.randn(4, 6, generator=rng), "bias": torch.zeros(4)})
    own = []
    for k in range(3):
        delta = (head.state["weight"] @ features[k]).softmax(0) - torch.eye(4)[k]
        moved = {"weight": head.state["weight"] - RATE * torch.outer(delta, features[k]), "bias": -RATE * delta}
        own.append(Observation(0, k, (Classifier(moved),), (head,)))
    groups = [(0, 1), (1, 2), (0, 2)]
    seen = tuple(replace(o, round=t) for t, group in enumerate(groups) for o in summed([own[k] for k in group]))
    knowledge = Knowledge(
        ThreatModel(rounds_seen=3), (1, 1, 6), 4, batch=BatchFacts(1, RATE, 1),
        extractors={k: lambda images: images.flatten(1) for k in (0, 2)},
    )  # fmt: skip
    wanted = (TargetId(2, 0, 0, 0), TargetId(2, 2, 0, 2))
    found = LayerDisaggregation(inversion="pixels", iterations=1).run(problem(seen, knowledge, wanted))
    assert found.features is not None
    expect_close(found.features, features[[0, 2]], atol=2e-2)


def problem(seen, knowledge, targets):

    return AttackProblem(seen, knowledge, targets)
