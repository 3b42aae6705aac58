"""Uploads are data from strangers: whatever is handed in is attacked, or refused in one line that names field and fault."""

import copy

import pytest
import torch
from torch import nn

import fedpriv
from fedpriv.sources.door import read_uploads

torch.manual_seed(0)
NETWORK = nn.Sequential(nn.Flatten(), nn.Linear(16, 6))
MODEL = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 3))
IMAGES, AUXILIARY, CLASSES = torch.rand(3, 1, 4, 4), torch.rand(2, 1, 4, 4), torch.arange(3)
VALUES = torch.rand(3, 6)
STATE = {name: value.clone() for name, value in MODEL.state_dict().items()}
AFTER = {name: value + 0.1 if value.is_floating_point() else value for name, value in STATE.items()}
GRADIENT = {name: torch.ones_like(value) for name, value in MODEL.named_parameters()}


class Evil(torch.Tensor):
    """Runs its own code wherever it is computed with."""

    @classmethod
    def __torch_function__(cls, function, kinds, given=(), named=None):
        raise AssertionError(f"{function} ran a stranger's code")


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")

    def __array__(self, *given):
        raise KeyError("no")


def evil(value):
    return torch.Tensor._make_subclass(Evil, value)


def nested(value):
    return torch.nested.nested_tensor([*value])


def quantised(value):
    return torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)


def huge(value):
    """A tensor of one number that passes for four terabytes."""
    return torch.zeros(1).expand(1 << 20, 1 << 20) if value.dim() == 2 else torch.zeros(1).expand(1 << 40)


def behind_the_back(**changes):
    """A payload whose tensors were changed after it was checked."""
    made = fedpriv.Prototypes(VALUES.clone(), CLASSES.clone(), torch.ones(3, dtype=torch.int64))
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


def door(uploads, target="prototype", **changes):
    """Everything that is checked before an attack is planned."""
    given = {"images": IMAGES, "labels": CLASSES, "extractor": None, "settings": {}}
    given |= {name: changes.pop(name) for name in list(changes) if name in given}
    if target == "model":
        given["settings"] = {"model": MODEL, **given["settings"]}
    own = (given["images"], given["labels"], given["extractor"], AUXILIARY)
    return read_uploads(uploads, target, *own, {**given["settings"], **changes})


def refused(words, *given, **named):
    """The door must refuse in one short line."""
    with pytest.raises(fedpriv.UserError) as caught:
        door(*given, **named)
    told = str(caught.value)
    assert words in told
    assert told.isprintable()
    assert len(told) < 700


ODD = {
    "meta": (lambda value: value.to("meta"), "meta device"),
    "sparse": (lambda value: value.to_sparse(), "layout torch.sparse_coo; expected a plain, dense"),
    "quantised": (quantised, "quantised"),
    "nested": (nested, "nested"),
    "subclass": (evil, "a Evil; expected a plain"),
    "huge": (huge, "1,099,511,627,776 values"),
    "no tensor": (lambda value: value.tolist(), "got list"),
    "hostile": (lambda value: Unprintable(), "got Unprintable"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns of quantised and nested tensors
@pytest.mark.parametrize("kind", ODD)
def test_a_payload_of_odd_tensors_is_refused(kind):
    make, words = ODD[kind]
    if kind != "no tensor":  # a payload takes lists of numbers
        with pytest.raises(fedpriv.UserError, match=r"prototype\.features: ") as caught:
            fedpriv.Prototypes(make(VALUES), CLASSES)
        assert words in str(caught.value)
        refused(words, behind_the_back(features=make(VALUES)))
    refused(words, fedpriv.Update(STATE, {**AFTER, "3.weight": make(AFTER["3.weight"])}), target="model")
    refused(words, fedpriv.Gradient({**GRADIENT, "3.weight": make(GRADIENT["3.weight"])}), target="model")
    refused(words, [fedpriv.Update({**STATE, "3.weight": make(STATE["3.weight"])}, AFTER)], target="model")
    if kind not in ("no tensor", "hostile"):
        refused(words, make(VALUES))
    if kind == "no tensor":
        return
    told = words.partition(",")[0] if kind == "huge" else words
    refused("images: " if kind == "huge" else told, UPLOAD, images=make(VALUES) if kind == "huge" else make(IMAGES))
    if kind != "quantised":
        refused("labels: ", UPLOAD, labels=make(CLASSES) if kind != "nested" else nested(CLASSES[:, None]))


UPLOAD = fedpriv.Prototypes(VALUES, CLASSES)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": VALUES.to(torch.complex64)}, "prototype.features: expected torch.float32, got torch.complex64"),
        ({"features": VALUES * torch.nan}, "prototype.features holds NaN or infinity"),
        ({"classes": torch.tensor([0, 1, 1])}, "prototype.classes: class 1 is there twice; expected one row a class"),
        ({"classes": torch.tensor([-1, 1, 2])}, "prototype.classes: class -1; expected 0..99999"),
        ({"counts": torch.tensor([1, -5, 1])}, "prototype.counts: -5 to 1; expected 0.."),
    ],
)
def test_a_payload_that_disagrees_with_itself_is_refused(changes, words):
    refused(words, behind_the_back(**changes))


@pytest.mark.parametrize(
    ("uploads", "target", "settings", "words"),
    [
        (UPLOAD, "prototype", {"n_classes": 2}, "uploads: prototype.classes: class 2; expected 0..1 (n_classes=2)"),
        (fedpriv.Entangled(VALUES[0], torch.rand(5)), "entangled", {"n_classes": 3}, "of 5 classes; expected 3"),
        (fedpriv.Entangled(VALUES[0], torch.zeros(1 << 20)), "entangled", {}, "of 1048576 classes"),
        (UPLOAD, "prototype", {"n_classes": 1 << 80}, "n_classes=1208925819614629174706176: expected at most 100000"),
        ({10**30: UPLOAD}, "prototype", {}, "expected client numbers 0..999999 as keys"),
        (UPLOAD, "prototype", {"device": 3}, "device 3: unknown device"),
        (UPLOAD, "prototype", {"dataset": "a\x1b[2J"}, "dataset: expected a printable text of at most 200 characters"),
        (UPLOAD, "prototype", {"groups": [Unprintable()]}, "groups: <Unprintable> of client 0"),
        (UPLOAD, "prototype", {"weights": Unprintable()}, "weights: expected a tensor, got Unprintable"),
        (
            UPLOAD,
            "prototype",
            {"broadcasts": behind_the_back(features=VALUES / 0)},
            "broadcasts: prototype.features holds NaN",
        ),
        (VALUES.to(torch.complex64), "prototype", {}, "uploads: a tensor of torch.complex64; expected floats"),
    ],
)
def test_what_disagrees_with_what_was_announced_is_refused(uploads, target, settings, words):
    refused(words, uploads, target=target, settings=settings)


@pytest.mark.parametrize(
    ("uploads", "words"),
    [
        (fedpriv.Update(STATE, [1]), "after: expected tensors by name, got list"),
        (fedpriv.Update(STATE, {}), "after['0.weight']: expected (2, 1, 3, 3) as in before, got nothing"),
        (
            fedpriv.Update({**STATE, "3.weight": torch.ones(9, 9)}, {**AFTER, "3.weight": torch.zeros(9, 9)}),
            "before['3.weight']: expected (3, 32) as in model, got (9, 9)",
        ),
        (fedpriv.Update(STATE, {**AFTER, "a\x1b[2J": torch.ones(1)}), "a tensor is called 'a\\x1b[2J'"),
        (fedpriv.Update(STATE, {**AFTER, "3.weight": AFTER["3.weight"].to(torch.complex64)}), "expected real floats"),
        (fedpriv.Update(STATE, {**AFTER, "3.weight": AFTER["3.weight"].double() * 1e300}), "holds NaN or infinity"),
        (
            fedpriv.Update(STATE, {**AFTER, "1.running_var": -torch.ones(2)}),
            "running statistics of '1': expected floats (2,), no variance",
        ),
        (
            fedpriv.Update(STATE, {**AFTER, "1.running_mean": torch.ones(7)}),
            "running statistics of '1': expected floats (2,)",
        ),
        (fedpriv.Gradient({**GRADIENT, "mine": torch.ones(1)}), "gradient['mine']: the model has no such parameter"),
        (fedpriv.Gradient([Unprintable()] * 6), "expected a tensor, got Unprintable"),
    ],
)
def test_weights_from_auxiliary_are_held_against_the_model(uploads, words):
    refused(words, uploads, target="model", batch=fedpriv.BatchFacts(3, 0.1, 1))


class Failing(nn.Module):
    def __init__(self, error=None, given=None):
        super().__init__()
        self.error, self.given = error, given

    def forward(self, images):
        if self.error is not None:
            raise self.error
        return self.given

    def __deepcopy__(self, memory):
        if isinstance(self.error, MemoryError):
            raise self.error
        return self


def with_weight(value):
    network = copy.deepcopy(NETWORK)
    network[1].weight = nn.Parameter(value, requires_grad=False)
    return network


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Failing(KeyError("x" * 9999)), "extractor: fails on images (1, 4, 4)"),
        (Failing(MemoryError("no")), "extractor: Failing cannot be copied"),
        (Failing(given=torch.ones(2, 6, dtype=torch.int64)), "extractor: returns NaN, infinity or torch.int64"),
        (with_weight(torch.full((6, 16), torch.nan)), "extractor: 1.weight holds NaN or infinity"),
        (with_weight(torch.ones(6, 16, device="meta")), "extractor: 1.weight: a tensor on the meta device"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(6)), "extractor: 1.weight: a UninitializedParameter"),
    ],
)
def test_networks_of_auxiliary_are_tried_first(network, words):
    refused(words, UPLOAD, extractor=network)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.zeros(3, 0, 4, 4), "images: no images; expected at least one"),
        (torch.zeros(1).expand(3, 1, 1 << 20, 1 << 20), "images: 3,298,534,883,328 values"),
    ],
)
def test_images_of_auxiliary_are_pictures(images, words):
    refused(words, UPLOAD, images=images)
