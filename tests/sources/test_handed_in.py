"""Images, labels and networks as people have them; every refusal, followed by its words, leads on."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, Subset, TensorDataset
from upload_cases import AUXILIARY, CLASSES, NETWORK, attack, smooth

import fedpriv
from fedpriv.sources.door import read_uploads
from fedpriv.sources.recorded import _Reader

SIZES = (3, 1)
IMAGES = [(smooth(size, 20 + size) * 255).round() / 255 for size in SIZES]
LABELS = [CLASSES[:size] for size in SIZES]


def linear(width=4):
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, width))


MODEL = linear()


def gradients(model=MODEL, images=IMAGES, labels=LABELS, loss=functional.cross_entropy):
    return [
        fedpriv.Gradient(torch.autograd.grad(loss(model(own), classes), model.parameters()))
        for own, classes in zip(images, labels, strict=True)
    ]


def door(uploads=None, images=IMAGES, labels=LABELS, auxiliary=AUXILIARY, **settings):
    uploads = gradients() if uploads is None else uploads
    return read_uploads(uploads, "model", images, labels, None, auxiliary, {"model": MODEL, **settings})


class Pairs(Dataset):
    """Arrays with their labels, as a loader of one's own has them."""

    def __init__(self, images, labels):
        self.images, self.labels = images.numpy(), labels.tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def twice(images, labels):
    """The second half of a data set twice as large."""
    return Subset(TensorDataset(images.repeat(2, 1, 1, 1), labels.repeat(2)), range(len(images), 2 * len(images)))


FORMS = {
    "float64": lambda images, labels: (images.double(), labels),
    "arrays": lambda images, labels: (images.numpy(), labels.numpy()),
    "list of arrays": lambda images, labels: ([*images.numpy()], labels.tolist()),
    "list of tensors": lambda images, labels: ([*images], [*labels]),
    "bytes": lambda images, labels: ((images * 255).round().to(torch.uint8), labels),
    "arrays of bytes": lambda images, labels: ((images * 255).round().numpy().astype(np.uint8), labels),
    "data set": lambda images, labels: (TensorDataset(images, labels), None),
    "subset": lambda images, labels: (twice(images, labels), None),
    "data set of arrays": lambda images, labels: (Pairs(images, labels), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_images_are_taken_in_every_form(form):
    pairs = [FORMS[form](*own) for own in zip(IMAGES, LABELS, strict=True)]
    images, labels = [image for image, _ in pairs], [label for _, label in pairs]
    labels = None if labels[0] is None else labels
    others, classes = (smooth(6, 31) * 255).round() / 255, torch.arange(6) % 3
    other, theirs = FORMS[form](others, classes)
    held_out = [other if theirs is None else (other, theirs) for _ in SIZES]
    public, of_public = FORMS[form](1 - others, classes)
    more = {"held_out": held_out, "public": public, "public_labels": of_public}
    source = door(
        images=images, labels=labels, auxiliary=FORMS[form](AUXILIARY.round(), classes[:1].repeat(60))[0], **more
    )
    for own, image, label in zip(source.images.values(), IMAGES, LABELS, strict=True):
        torch.testing.assert_close(own.images, image, rtol=0, atol=1e-7)
        assert own.labels.tolist() == label.tolist()
    torch.testing.assert_close(source.held_out[1].images, others, rtol=0, atol=1e-7)
    torch.testing.assert_close(source.public.images.cpu(), 1 - others, rtol=0, atol=1e-7)
    torch.testing.assert_close(source.auxiliary.images, AUXILIARY.round(), rtol=0, atol=0)
    alone = door(gradients()[1], images[1], None if labels is None else labels[1])
    assert len(alone.images[0]) == 1


def test_one_logit_becomes_two_of_the_same_gradient():
    """The advice of the refusal: cross-entropy of (0, z) is binary cross-entropy of z."""

    class Two(nn.Sequential):
        def forward(self, images):
            z = super().forward(images)
            return torch.cat([torch.zeros_like(z), z], 1)

    def binary(z, labels):
        return functional.binary_cross_entropy_with_logits(z[:, 0], labels.float())

    labels = [torch.tensor([0, 1, 1]), torch.tensor([1])]
    one = linear(1)
    sent = gradients(one, labels=labels, loss=binary)
    with pytest.raises(fedpriv.UserError, match=r"torch\.cat\(\[torch\.zeros_like\(z\), z\], 1\)"):
        door(sent, labels=labels, model=one)
    two = Two(*one)
    for first, second in zip(sent, gradients(two, labels=labels), strict=True):
        for mine, other in zip(first.values, second.values, strict=True):
            torch.testing.assert_close(mine, other)
    result = fedpriv.attack_uploads(
        sent, target="model", model=two, images=IMAGES, labels=labels, auxiliary=AUXILIARY, attacks="linear-layer"
    )
    assert result.records["linear-layer"].premise.status == "agrees"


def normalised(images):
    return (images - 0.4) / 0.25


@pytest.mark.parametrize("normalise", [(0.4, 0.25), ([0.4], np.array([0.25]))])
def test_training_that_normalised_is_attacked_as_it_was(normalise):
    images, labels = IMAGES[1:] * 2, LABELS[1:] * 2
    given = {"images": images, "labels": labels, "target": "model", "model": MODEL, "attacks": "linear-layer"}
    sent = gradients(images=[normalised(own) for own in images], labels=labels)
    found = attack(sent, extractor=None, normalise=normalise, **given).records["linear-layer"]
    assert found.premise.status == "agrees"
    assert found.metrics.psnr_db.mean > 60
    missing = attack(sent, extractor=None, **given).records["linear-layer"]
    assert missing.premise.status == "differs"
    means = [
        fedpriv.Prototypes(NETWORK(normalised(own)).detach(), label) for own, label in zip(images, labels, strict=True)
    ]
    given = {"images": images, "labels": labels, "attacks": "pixels"}
    assert attack(means, normalise=normalise, **given).records["pixels"].premise.status == "agrees"
    assert attack(means, **given).records["pixels"].premise.status == "differs"


def test_counters_that_a_server_averages_are_no_weights():
    """FedAvg makes floats of num_batches_tracked; clients answer whole numbers."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(128, 4))
    start = {name: value.double().float() for name, value in model.state_dict().items()}
    end = {name: value + 0.1 if value.is_floating_point() else value + 3 for name, value in model.state_dict().items()}
    for before, after in ((start, end), (end, start), (start, {name: value.float() for name, value in end.items()})):
        batch = fedpriv.BatchFacts(3, 0.1, 1)
        door(fedpriv.Update(before, after), IMAGES[0], LABELS[0], model=model, batch=batch)
        for plain in (False, True):
            arrays = [
                dict(zip(map(str, range(99)), one.values(), strict=False)) if plain else one for one in (after, before)
            ]
            reader = object.__new__(_Reader)
            reader.target, reader.model, reader.owner = "model", model, SimpleNamespace(where="facts")
            update = reader._upload(*arrays, difference=False)
            parameters = dict(model.named_parameters())
            assert {name: value.shape for name, value in update.after.items() if name in parameters} == {
                name: value.shape for name, value in parameters.items()
            }
            assert torch.equal(update.after["1.running_var"], after["1.running_var"].float())


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(
    ("make", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.SGD, {"weight_decay": 0.1}),
        (torch.optim.Adam, {}),
        (torch.optim.AdamW, {}),
    ],
)
def test_an_optimiser_that_is_not_plain_sgd_is_never_vouched_for(make, options, steps):
    uploads, images = [], [smooth(4 * steps, 50 + client) for client in range(2)]
    labels = [torch.arange(4 * steps) % 4] * 2
    for own, classes in zip(images, labels, strict=True):
        model = copy.deepcopy(MODEL)
        optimiser = make(model.parameters(), lr=0.05, **options)
        for some, theirs in zip(own.split(4), classes.split(4), strict=True):
            optimiser.zero_grad()
            functional.cross_entropy(model(some), theirs).backward()
            optimiser.step()
        uploads.append(fedpriv.Update(MODEL.state_dict(), model.state_dict()))
    given = {"images": images, "labels": labels, "target": "model", "model": MODEL, "attacks": "dlg", "extractor": None}
    plain = steps == 1 and options == {"momentum": 0.9}  # whose first step is that of SGD
    for optimiser in ("sgd", f"{make.__name__} with more"):
        result = attack(uploads, batch=fedpriv.BatchFacts(4, 0.05, steps, optimiser=optimiser), **given)
        assert result.records["dlg"].premise.status != "agrees" or plain
        assert "no leak" not in result.verdict


def test_images_of_a_data_set_are_loaded_for_loops_of_ones_own(tmp_path):
    data = fedpriv.load("fashion", per_class=3, image_size=8)
    assert (data.images.shape, data.images.dtype, len(data)) == ((30, 1, 8, 8), torch.float32, 30)
    assert 0 <= float(data.images.min()) < float(data.images.max()) <= 1
    assert data.classes[int(data.labels[0])] == "Ankle boot"
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), (255, 0, 0)).save(tmp_path / name / "one.png")
    data = fedpriv.load(f"folder:{tmp_path}")
    assert (data.classes, data.images[0, :, 0, 0].tolist()) == (("cat", "dog"), [1, 0, 0])
    for wrong, words in (("fasion", "did you mean 'fashion'"), (3, "name=3: expected a name"), ("folder", "data_dir")):
        with pytest.raises(fedpriv.UserError, match=words):
            fedpriv.load(wrong)


LATER = [{name: value + 0.01 for name, value in MODEL.state_dict().items()} for _ in SIZES]
UPDATES = [fedpriv.Update(MODEL.state_dict(), after) for after in LATER]
FACTS = [fedpriv.BatchFacts(size, 0.1, 1) for size in SIZES]
PUBLIC = {"public": smooth(40, 70), "public_labels": torch.arange(40) % 3}
SENT = [fedpriv.Prototypes(NETWORK(own).detach(), label) for own, label in zip(IMAGES, LABELS, strict=True)]
DAMAGED = {0: SENT[0], 1: {0: torch.full((64,), float("nan"))}}
MEANS = {"target": "prototype", "extractor": NETWORK, "model": None, "attacks": "pixels"}
DEEP = [(own * 3071).round().to(torch.int16) for own in IMAGES]


def scaled(images, low, high):
    return [(own * (high - low) + low).round().to(torch.int32) for own in images]


REFUSED = {
    "batch facts missing": (
        {"uploads": UPDATES},
        r"pass .*, of your own uploads batch=fedpriv.BatchFacts\(batch_size, learning_rate, steps\)",
        {"uploads": UPDATES, "batch": FACTS},
    ),
    "knowledge of batch": (
        {"uploads": UPDATES, "knowledge": {"batch": "known"}},
        r"not handed in; pass batch=fedpriv.BatchFacts\(",
        {"uploads": UPDATES, "knowledge": {"batch": "known"}, "batch": FACTS},
    ),
    "knowledge of images": ({"knowledge": {"attacker_data": "same_domain"}},
        "pass public=IMAGES and public_labels=CLASSES", {"knowledge": {"attacker_data": "same_domain"}, **PUBLIC}),
    "no extractor": ({**MEANS, "uploads": SENT, "extractor": None},
        "of your own uploads extractor=NETWORK", {**MEANS, "uploads": SENT}),
    "empty client": (
        {"uploads": gradients() + gradients()[1:], "images": [*IMAGES, IMAGES[0][:0]], "labels": [*LABELS, LABELS[0][:0]]},
        "images: client 2: no images; expected at least one.*; leave out clients that have none",
        {},
    ),
    "NaN": ({**MEANS, "uploads": DAMAGED}, "client 1: prototype.features holds NaN", {**MEANS, "uploads": SENT}),
    "label outside": (
        {"labels": [torch.tensor([0, 9, 1]), LABELS[1]]},
        r"labels: client 0 has class 9, and the model gives 4 logits \(classes 0 to 3\)",
        {"labels": [torch.tensor([0, 3, 1]), LABELS[1]]},
    ),
    "12 bits": (
        {"images": DEEP},
        r"images: client 0: got torch.int16 of values \d+ to \d+; expected floats in \[0, 1\]: divide by 4095",
        {"images": [own / 4095 for own in DEEP]},
    ),
    "a dark client": (
        {"images": [DEEP[0] // 64, *DEEP[1:]]},
        r"images: client 0: got torch.int16 of values \d+ to \d+; expected floats in \[0, 1\]: divide by 4095",
        {"images": [DEEP[0] / 64 / 4095, *(own / 4095 for own in DEEP[1:])]},
    ),
    "16 bits": (
        {"images": [(own.numpy() * 65535).astype(np.uint16) for own in IMAGES]},
        "got torch.uint16 of values .*: divide by 65535",
        {"images": [(own.numpy() * 65535).astype(np.uint16) / 65535 for own in IMAGES]},
    ),
    "below zero": ({"images": scaled(IMAGES, -1000, 3000)}, r"values -\d+ to \d+; .*: add \d+ and divide by 4095",
        {"images": [(own + 1000) / 4095 for own in scaled(IMAGES, -1000, 3000)]}),
    "floats to 255": ({"auxiliary": AUXILIARY * 255},
        r"auxiliary: values from .*; expected \[0, 1\]: divide by 255", {"auxiliary": AUXILIARY * 255 / 255}),
    "normalised": (
        {"images": [normalised(own) for own in IMAGES], "uploads": gradients(images=[normalised(own) for own in IMAGES])},
        r"images: client 0: values from -.*before any normalisation, which normalise=\(mean, std\) is told of",
        {"normalise": (0.4, 0.25), "uploads": gradients(images=[normalised(own) for own in IMAGES])},
    ),
    "channels last": (
        {"images": [own.permute(0, 2, 3, 1).numpy() for own in IMAGES]},
        r"channels come first: transpose to \(0, 3, 1, 2\)",
        {"images": [own.permute(0, 2, 3, 1).numpy().transpose(0, 3, 1, 2) for own in IMAGES]},
    ),
    "labels twice": (
        {"images": [TensorDataset(*own) for own in zip(IMAGES, LABELS, strict=True)]},
        "labels: client 0: the data set in images: client 0 has labels; leave these out",
        {"images": [TensorDataset(*own) for own in zip(IMAGES, LABELS, strict=True)], "labels": None},
    ),
    "fewer labels": ({"labels": [LABELS[0][:2], LABELS[1]]},
        r"labels: client 0: expected 3, one an image, got shape \(2,\)", {"labels": [LABELS[0], LABELS[1]]}),
    "bare weights": (
        {"uploads": LATER, "batch": FACTS},
        r"pass fedpriv.Update\(before, after\), .*, or broadcasts= with the weights of the beginning",
        {"uploads": LATER, "batch": FACTS, "broadcasts": MODEL.state_dict()},
    ),
    "other target": ({"target": "prototype"}, "uploads: weights were given, but prototype is", {"target": "model"}),
    "no extractor of gradients": ({"model": None}, "model: missing", {"model": MODEL}),
}  # fmt: skip
"""Refusal -> the call, words of its line, and the call that follows them."""


@pytest.mark.parametrize("name", REFUSED)
def test_following_a_refusal_leads_on(name):
    wrong, words, right = REFUSED[name]
    usual = {"uploads": gradients(), "images": IMAGES, "labels": LABELS, "target": "model", "model": MODEL}
    usual |= {"extractor": None, "attacks": "linear-layer"}
    with pytest.raises(fedpriv.UserError, match=words) as caught:
        attack(**{**usual, **wrong})
    assert "\n" not in str(caught.value)
    changed = {key: value for key, value in (usual | right).items() if value is not None or key != "model"}
    assert attack(**changed).records
