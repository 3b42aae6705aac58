"""Twelve untrained networks that people bring, each with four kinds of upload: an attack runs, or is refused in one line."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision import models
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.densenet import DenseNet
from torchvision.models.efficientnet import EfficientNet, MBConvConfig
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer

import fedpriv

SIDE, CLASSES, RATE, STEPS = 32, 10, 0.01, 3


class Mixer(nn.Module):
    """An MLP-Mixer of one block over 16 patches."""

    def __init__(self, width=24):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, width, 8, 8), nn.Linear(width, CLASSES)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, images):
        values = self.patches(images).flatten(2).mT
        values = values + self.tokens(self.norms[0](values).mT).mT
        return self.head((values + self.channels(self.norms[1](values))).mean(1))


class Rows(nn.Module):
    """A network over the 32 rows of an image, each a token: attention, or an LSTM."""

    def __init__(self, layer):
        super().__init__()
        self.embed, self.layer, self.head = nn.Linear(3 * SIDE, 16), layer, nn.Linear(16, CLASSES)

    def forward(self, images):
        rows = self.embed(images.transpose(1, 2).flatten(2))
        attended = isinstance(self.layer, nn.MultiheadAttention)
        made = self.layer(rows, rows, rows, need_weights=False) if attended else self.layer(rows)
        return self.head(made[0].mean(1))


def vgg():
    """VGG-11 with a linear head in place of its 120 million weights."""
    network = models.vgg11(num_classes=1, init_weights=False)
    network.avgpool, network.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(512, CLASSES)
    return network


def vision_transformer():
    """ViT of patches of 16; torchvision begins with a head of zeros."""
    network = VisionTransformer(SIDE, 16, 2, 2, 32, 64, dropout=0.1, attention_dropout=0.1, num_classes=CLASSES)
    nn.init.normal_(network.heads[0].weight, std=0.1)
    return network


NETWORKS = {
    "ResNet-18": partial(ResNet, BasicBlock, [2, 2, 2, 2], num_classes=CLASSES),
    "VGG-11": vgg,
    "DenseNet-121": partial(DenseNet, 4, (6, 12, 24, 16), 8, num_classes=CLASSES),
    "MobileNet-V3-small": partial(models.mobilenet_v3_small, num_classes=CLASSES, width_mult=0.25, reduced_tail=True),
    "EfficientNet-B0": partial(
        EfficientNet,
        [MBConvConfig(1, 3, 1, 32, 16, 1, 0.25), MBConvConfig(6, 3, 2, 16, 24, 2, 0.25)],
        0.2,
        num_classes=CLASSES,
    ),
    "ViT-B/16": vision_transformer,
    "ConvNeXt-Tiny": partial(
        ConvNeXt, [CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], 0.1, num_classes=CLASSES
    ),
    "SqueezeNet": partial(models.squeezenet1_1, num_classes=CLASSES),
    "MLP-Mixer": Mixer,
    "transformer": lambda: Rows(nn.MultiheadAttention(16, 2, dropout=0.1, batch_first=True)),
    "LSTM": lambda: Rows(nn.LSTM(16, 16, batch_first=True)),
    "GroupNorm CNN": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 256, CLASSES)
    ),
}

REFUSED: dict[tuple[str, str], str] = {}
"""(network, upload) -> a part of the line that refuses it. At most six of 48."""


def upload_of(kind, network, images, labels):
    """What a client of some images sends, with dropout off."""
    if kind in ("prototypes", "logits"):
        rows = copy.deepcopy(network).eval()(images).detach()
        return fedpriv.Prototypes(rows, labels) if kind == "prototypes" else fedpriv.Representations(rows, labels)
    model, steps = copy.deepcopy(network).train(), 1 if kind == "gradient" else STEPS
    optimiser = torch.optim.SGD(model.parameters(), RATE)
    for _ in range(steps):
        optimiser.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        if kind == "gradient":
            return fedpriv.Gradient({name: value.grad for name, value in model.named_parameters()})
        optimiser.step()
    return fedpriv.Update(network.state_dict(), model.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["gradient", "update", "prototypes", "logits"])
def test_an_attack_runs_or_is_refused_before_any_work(name, kind, monkeypatch):
    """Few iterations lead to images; a refusal is one line, which comes before a search begins."""
    torch.manual_seed(0)
    network, images, labels = NETWORKS[name](), torch.rand(2, 3, SIDE, SIDE), torch.tensor([1, 2])
    upload = upload_of(kind, network, images, labels)
    known = {"images": images, "labels": labels, "auxiliary": torch.rand(4, 3, SIDE, SIDE), "iterations": 3}
    if kind in ("gradient", "update"):
        known |= {"target": "model", "model": network, "attacks": ["inverting-gradients"]}
        if kind == "update":
            known["batch"] = fedpriv.BatchFacts(2, RATE, STEPS)
            known |= {"images": images.repeat(STEPS, 1, 1, 1), "labels": labels.repeat(STEPS)}
    else:
        target = "prototype" if kind == "prototypes" else "representation"
        known |= {"target": target, "extractor": network, "attacks": ["pixels"]}
    if (name, kind) in REFUSED:
        monkeypatch.setattr("fedpriv.pipeline.execute.search", None)
        with pytest.raises(fedpriv.UserError, match=REFUSED[name, kind]):
            fedpriv.attack_uploads(upload, **known)
        return
    result = fedpriv.attack_uploads(upload, **known)
    assert result.images(known["attacks"][0]).isfinite().all()


def test_at_most_six_are_refused():
    """Of 48."""
    assert len(REFUSED) <= 6
