"""Mixed batches: images and weights found together where classes differ, and the sum where they do not."""

import pytest
import torch
from compare import expect_close
from gradient_cases import RATE, images_and_labels, knowledge_of, psnr, sigmoid_net
from torch.nn import functional

from fedpriv.attacks.gradients.dlg import DeepLeakage, MixtureSeparation, unmixed
from fedpriv.attacks.observation import Observation, TargetId
from fedpriv.defenses.training import Mixup, mixed_step
from fedpriv.federation.defense import Work
from fedpriv.uploads.payloads import Model

WHICH = (TargetId(0, 0),)


def mixed(labels, seed=0, images_mixed=3):
    """One step of a client that mixes, as the defense does."""
    model, (images, _) = sigmoid_net(), images_and_labels(len(labels))
    before = {name: value.detach().clone() for name, value in model.named_parameters()}

    def step(work, batch, classes):
        loss = work.loss(batch, classes)
        loss.backward()
        return loss.detach()

    rng = torch.Generator().manual_seed(seed)
    work = Work(model, lambda x, y: functional.cross_entropy(model(x), y), tuple(model.parameters()), None, rng)
    mixed_step(step, Mixup(images=images_mixed))(work, images, labels)
    after = {name: before[name] - RATE * value.grad for name, value in model.named_parameters()}
    model.zero_grad()
    return model, images, (Observation(0, 0, (Model(after),), (Model(before),)),)


@pytest.mark.parametrize("seed", [0, 3])
def test_images_of_different_classes_come_back_unmixed(seed):
    labels = torch.tensor([3, 7, 1])
    model, images, seen = mixed(labels, seed)
    knowledge = knowledge_of(model, labels, 3)
    found = MixtureSeparation()(seen, knowledge, WHICH)
    mixtures = DeepLeakage(outer_steps=15)(seen, knowledge, WHICH)
    assert float(psnr(found.images[0], images).mean()) > float(psnr(mixtures.images[0], images).mean()) + 6
    assert float(psnr(found.images[0], images).min()) > 20
    assert found.labels[0].tolist() == labels.tolist()


def test_an_update_of_noise_leads_to_none_of_the_images():
    labels = torch.tensor([3, 7, 1])
    model, images, seen = mixed(labels)
    rng = torch.Generator().manual_seed(0)
    noise = {name: v + 0.01 * torch.randn(v.shape, generator=rng) for name, v in seen[0].broadcast[0].state.items()}
    seen = (Observation(0, 0, (Model(noise),), seen[0].broadcast),)
    attack, known = MixtureSeparation(outer_steps=10, restarts=1), knowledge_of(model, labels, 3)
    found = attack(seen, known, WHICH)
    assert float(psnr(found.images[0], images).max()) < 20
    assert not bool(found.converged)


def test_unmixing_by_hand():
    mixtures, weights = torch.tensor([0.7, 0.3]).view(1, 2, 1, 1, 1), torch.tensor([[[0.75, 0.25], [0.25, 0.75]]])
    expect_close(unmixed(mixtures, weights).flatten(), torch.tensor([0.9, 0.1]), atol=1e-5)
    halves = torch.full((1, 2, 2), 0.5)  # of each: no more than the mean is known
    expect_close(unmixed(torch.full_like(mixtures, 0.7), halves).flatten(), torch.tensor([0.7, 0.7]), atol=1e-5)
