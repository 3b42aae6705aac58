"""Means over clients: the step of one larger batch."""

from dataclasses import replace

import pytest
import torch
from gradient_cases import RATE, clients, images_and_labels, knowledge_of, psnr, sigmoid_net

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.pooled import PooledBatch
from fedpriv.attacks.observation import BatchFacts, TargetId
from fedpriv.sources.source import summed, summed_without_own
from fedpriv.util.errors import UserError

LABELS = torch.tensor([3, 7, 1])


def aggregated(batch_size=1):
    model, (images, _) = sigmoid_net(), images_and_labels(3 * batch_size)
    labels = LABELS.repeat_interleave(batch_size)
    return model, images, labels, clients(model, images, labels, batch_size)


def targets_of(seen):
    return tuple(TargetId(one.round, one.client) for one in seen)


def test_three_clients_images_come_back_from_the_mean_of_their_updates_each_to_its_owner():
    model, images, labels, separate = aggregated()
    seen = summed(separate)
    known, targets = knowledge_of(model, labels), targets_of(seen)
    found = PooledBatch(search="dlg", iterations=600)(seen, known, targets)
    assert float(psnr(found.images[:, 0], images).min()) > 30
    assert found.labels[:, 0].tolist() == labels.tolist()
    assert found.cost.rows == 1  # one search for all three
    alone = DeepLeakage(outer_steps=30, redraws=2)(seen, known, targets)
    assert float(psnr(alone.images[:, 0], images).max()) < 20  # what takes the mean for the upload of one


def test_a_mean_without_the_client_gives_nothing_of_it():
    model, images, labels, separate = aggregated()
    control = summed_without_own(separate)
    knowledge = knowledge_of(model, labels)
    found = PooledBatch(search="dlg", iterations=60)(control, knowledge, targets_of(control))
    assert float(psnr(found.images[:, 0], images).max()) < 20
    assert found.cost.rows == 3  # every client's control is another


def test_what_is_no_mean_of_one_step_on_known_labels_is_refused():
    model, _, labels, separate = aggregated()
    attack, seen = PooledBatch(), summed(separate)
    with pytest.raises(UserError, match="sees the upload of each client"):
        attack.check(separate)
    attack.check(seen)
    with pytest.raises(UserError, match="several local steps"):
        attack(seen, replace(knowledge_of(model, labels), batch=BatchFacts(1, RATE, 2)), targets_of(seen))
    fewer = {place: own for place, own in knowledge_of(model, labels).labels.items() if place[1] != 2}
    with pytest.raises(UserError, match="labels of client 2 in round 0"):
        attack(seen, replace(knowledge_of(model, labels), labels=fewer), targets_of(seen))
