"""Small uploads of one's own, and an attack on them, that the tests of handed uploads share."""

import torch
from torch import nn
from torch.nn import functional

import fedpriv

CLASSES = torch.arange(3)


def smooth(number, seed):
    draw = torch.Generator().manual_seed(seed)
    return functional.interpolate(torch.rand(number, 1, 4, 4, generator=draw), scale_factor=2, mode="bilinear")


def extractor(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.LeakyReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.LeakyReLU(),
        nn.Flatten(),
        nn.Linear(256, 64),
    )


def classifier():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(192, 10))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


NETWORK, MODEL = extractor(), classifier()
IMAGES = [smooth(3, 1), smooth(3, 2)]
AUXILIARY = smooth(60, 3)
UPLOADS = [fedpriv.Prototypes(NETWORK(images).detach(), CLASSES) for images in IMAGES]
MIXTURE = fedpriv.Entangled(torch.ones(64), torch.full((3,), 1 / 3))
USUAL = {
    **{"extractor": NETWORK, "images": IMAGES, "labels": [CLASSES, CLASSES], "auxiliary": AUXILIARY},
    **{"target": "prototype", "attacks": "pixels", "iterations": 2},
}


def attack(uploads=UPLOADS, **changes):
    return fedpriv.attack_uploads(uploads, **{**USUAL, **changes})
