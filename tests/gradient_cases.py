"""Small networks, images and clients that the tests of gradient matching share."""

import torch
from torch import nn
from torch.nn import functional

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.observation import BatchFacts, Knowledge, Observation, ThreatModel
from fedpriv.uploads.payloads import Model
from fedpriv.util.seeds import global_seed

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)
RATE = 0.5


def sigmoid_net(bias=True):
    """A small sigmoid network with weights from U(-0.5, 0.5)."""
    with global_seed(1):
        model = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(192, 10, bias=bias),
        )
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def linear_net():
    """One linear layer over the pixels, all weights zero: an update is a sum of its images."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def noise_images(count, seed=7):
    """Images of independent pixels, which a linear layer tells apart."""
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def images_and_labels(count):
    draw = torch.Generator().manual_seed(5)
    coarse = torch.rand(count, 1, 4, 4, generator=draw)
    return functional.interpolate(coarse, scale_factor=2, mode="bilinear"), torch.randint(10, (count,), generator=draw)


def clients(model, images, labels, batch_size=1, steps=1, rate=RATE):
    """Let clients of ``batch_size * steps`` images each take SGD steps from the same broadcast, an image a step."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    seen, held = [], batch_size * steps
    for client, (own, own_labels) in enumerate(zip(images.split(held), labels.split(held), strict=True)):
        model.load_state_dict(before, strict=False)
        optimiser = torch.optim.SGD(model.parameters(), lr=rate)
        for batch, target in zip(own.split(batch_size), own_labels.split(batch_size), strict=True):
            optimiser.zero_grad()
            functional.cross_entropy(model(batch), target).backward()
            optimiser.step()
        after = {name: value.detach().clone() for name, value in model.named_parameters()}
        seen.append(Observation(0, client, (Model(after),), (Model(before),)))
    model.load_state_dict(before, strict=False)
    return tuple(seen)


def knowledge_of(model, labels, batch_size=1, steps=1, given=True, rate=RATE, shape=SHAPE):
    return Knowledge(
        ThreatModel(labels="given" if given else "inferred"),
        shape,
        10,
        model=model,
        batch=BatchFacts(batch_size, rate, steps),
        labels={(0, client): part for client, part in enumerate(labels.split(batch_size * steps))} if given else {},
    )


def attack(made, model, images, labels, batch_size=1, steps=1, given=True, rate=RATE, observations=None, **rest):
    observations = observations or clients(model, images, labels, batch_size, steps, rate)
    knowledge = knowledge_of(model, labels, batch_size, steps, given, rate)
    return made(observations, knowledge, list_targets(observations, "model"), **rest)


def psnr(guess, truth):
    return -10 * (guess - truth).square().flatten(1).mean(1).clamp_min(1e-10).log10()
