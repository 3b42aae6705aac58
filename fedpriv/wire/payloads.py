"""Everything that crosses the wire: one frozen dataclass per kind of payload, with named and shaped tensors.

A *message* is a tuple of payloads, in either direction. The fields of a payload are the threat surface, so each says
its shape, what of the data it was computed from, and whether it is private or metadata. Messages are stored as
safetensors with their structure in the header; nothing is ever unpickled.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedpriv.util.errors import UserError
from fedpriv.util.files import whole

FORMAT = "fedpriv-message-1"
HEADER = "fedpriv"


def tensor(shape: str, *, private: bool, paper: bool = True, integer: bool = False, optional: bool = False) -> Any:
    """Declare a tensor field.

    Args:
        shape: axis letters separated by blanks; equal letters within one payload must have equal lengths.
        private: whether it was computed from the client's images (True) or is metadata (False).
        paper: whether the field's habit of counting communication counts it (labels, ids and counts are left out).
        integer: int64 instead of float32.
        optional: may be None.
    """
    meta = {"shape": shape, "private": private, "paper": paper, "integer": integer, "optional": optional}
    return field(default=None, metadata=meta) if optional else field(metadata=meta)


def state(*, private: bool = True) -> Any:
    """Declare a field that maps parameter names to tensors of any shape."""
    return field(metadata={"shape": "*", "private": private, "paper": True, "integer": None, "optional": False})


@dataclass(frozen=True)
class Payload:
    """One kind of thing that is sent. Subclasses only declare fields."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Mapping):
                # Sorted, so that a payload is the same whether it was just made or read back.
                object.__setattr__(self, spec.name, types.MappingProxyType(dict(sorted(value.items()))))
        self.check()

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name; the entries of a mapping field are called ``field/entry``."""
        found: dict[str, Tensor] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Mapping):
                found.update({f"{spec.name}/{name}": entry for name, entry in value.items()})
            elif value is not None:
                found[spec.name] = value
        return found

    def in_paper_count(self, name: str) -> bool:
        """Whether the field's habit counts the tensor ``name``."""
        spec = next(spec for spec in fields(self) if spec.name == name.partition("/")[0])
        return bool(spec.metadata["paper"])

    def check(self) -> None:
        """Check types, shapes and dtypes.

        Raises:
            UserError: naming the kind and the field that is wrong.
        """
        axes: dict[str, int] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value is None and spec.metadata["optional"]:
                continue
            if spec.metadata["shape"] == "*":
                if not isinstance(value, Mapping) or not all(isinstance(entry, Tensor) for entry in value.values()):
                    raise UserError(f"{self.kind}.{spec.name}: expected tensors by name, got {type(value).__name__}")
                continue
            _check_tensor(f"{self.kind}.{spec.name}", value, spec.metadata, axes)

    def non_finite(self) -> str | None:
        """Return the name of the first tensor that holds NaN or infinity, or None."""
        return next((n for n, t in self.tensors().items() if t.is_floating_point() and not t.isfinite().all()), None)


def _check_tensor(where: str, value: object, meta: Mapping[str, Any], axes: dict[str, int]) -> None:
    if not isinstance(value, Tensor):
        raise UserError(f"{where}: expected a tensor, got {type(value).__name__}")
    letters = meta["shape"].split()
    if value.dim() != len(letters):
        raise UserError(f"{where}: expected shape ({', '.join(letters)}), got {tuple(value.shape)}")
    for letter, size in zip(letters, value.shape, strict=True):
        expected = int(letter) if letter.isdigit() else axes.setdefault(letter, size)
        if expected != size:
            raise UserError(f"{where}: axis {letter} should be {expected}, got shape {tuple(value.shape)}")
    wanted = torch.int64 if meta["integer"] else torch.float32
    if value.dtype != wanted:
        raise UserError(f"{where}: expected {wanted}, got {value.dtype}")


# ---------------------------------------------------------------- computed from samples


@dataclass(frozen=True)
class Representations(Payload):
    """Raw representations of training images, one row an image (FedAllRep)."""

    kind: ClassVar[str] = "representation"
    features: Tensor = tensor("n d", private=True)  # g(x) of each image
    labels: Tensor = tensor("n", private=True, paper=False, integer=True)


@dataclass(frozen=True)
class Prototypes(Payload):
    """Mean representation of each class that the client holds (FedProto, FedGH, FedTGP, FPL)."""

    kind: ClassVar[str] = "prototype"
    features: Tensor = tensor("c d", private=True)  # mean of g(x) over the class's training images
    classes: Tensor = tensor("c", private=True, paper=False, integer=True)  # which classes these are
    counts: Tensor | None = tensor("c", private=True, paper=False, integer=True, optional=True)  # images averaged


@dataclass(frozen=True)
class Entangled(Payload):
    """One weighted sum of all of a client's representations, and of its labels with the same weights (FedRE)."""

    kind: ClassVar[str] = "entangled"
    feature: Tensor = tensor("d", private=True)  # sum_i w_i g(x_i)
    label_encoding: Tensor = tensor("C", private=True, paper=False)  # sum_i w_i onehot(y_i): the weights, by class


@dataclass(frozen=True)
class AngleMatrix(Payload):
    """The m diagonal blocks of a d x d matrix trained with the local model (FedRAL). m = 1 is the dense matrix."""

    kind: ClassVar[str] = "angle-matrix"
    blocks: Tensor = tensor("m b b", private=True)  # b = d / m


@dataclass(frozen=True)
class ClassLogits(Payload):
    """Mean output of each class that the client holds (FD)."""

    kind: ClassVar[str] = "logits"
    values: Tensor = tensor("c C", private=True)
    classes: Tensor = tensor("c", private=True, paper=False, integer=True)


@dataclass(frozen=True)
class Kernel(Payload):
    """Similarities of L public inputs under the client's extractor (FedHeNN)."""

    kind: ClassVar[str] = "kernel"
    matrix: Tensor = tensor("L L", private=True)


@dataclass(frozen=True)
class LabelCounts(Payload):
    """How many training images of each class the client holds (FedGen, once)."""

    kind: ClassVar[str] = "label-counts"
    counts: Tensor = tensor("C", private=True, paper=False, integer=True)


@dataclass(frozen=True)
class SampleCount(Payload):
    """How many training images the client holds: the weight of its upload in an average."""

    kind: ClassVar[str] = "sample-count"
    count: Tensor = tensor("1", private=True, paper=False, integer=True)


# ---------------------------------------------------------------- trained on samples


@dataclass(frozen=True)
class Classifier(Payload):
    """The head, one linear layer d -> C (LG-FedAvg, FedGen; broadcast by FedGH, FedRE)."""

    kind: ClassVar[str] = "classifier"
    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class Extractor(Payload):
    """The extractor without the head (FedRep)."""

    kind: ClassVar[str] = "extractor"
    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class Model(Payload):
    """A whole model (FedAvg and relatives)."""

    kind: ClassVar[str] = "model"
    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class SmallModel(Payload):
    """The homogeneous model that is shared beside the private one (FedMRL, FML, FedAPEN)."""

    kind: ClassVar[str] = "small-model"
    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class LowRankModel(Payload):
    """A model whose matrices are sent as truncated singular value decompositions (FedKD)."""

    kind: ClassVar[str] = "low-rank-model"
    factors: Mapping[str, Tensor] = state()


# ---------------------------------------------------------------- sent by the server only


@dataclass(frozen=True)
class Generator(Payload):
    """A network from noise and label to a representation (FedGen's broadcast)."""

    kind: ClassVar[str] = "generator"
    state: Mapping[str, Tensor] = state(private=False)


@dataclass(frozen=True)
class Energy(Payload):
    """Share of the squared singular values that uploads should keep (FedKD's broadcast)."""

    kind: ClassVar[str] = "energy"
    share: Tensor = tensor("1", private=False, paper=False)  # in (0, 1]


@dataclass(frozen=True)
class PublicImages(Payload):
    """Unlabelled public images that every client represents (FedHeNN's broadcast)."""

    kind: ClassVar[str] = "public-images"
    images: Tensor = tensor("L c h w", private=False)


@dataclass(frozen=True)
class Coefficient(Payload):
    """A hyperparameter that the server schedules (FedHeNN's weight of the alignment term)."""

    kind: ClassVar[str] = "coefficient"
    value: Tensor = tensor("1", private=False, paper=False)


@dataclass(frozen=True)
class FeatureMean(Payload):
    """Mean representation (FedAvgDBE, once)."""

    kind: ClassVar[str] = "feature-mean"
    mean: Tensor = tensor("d", private=True)


KINDS: dict[str, type[Payload]] = {
    payload.kind: payload
    for payload in (
        Representations,
        Prototypes,
        Entangled,
        AngleMatrix,
        ClassLogits,
        Kernel,
        LabelCounts,
        SampleCount,
        Classifier,
        Extractor,
        Model,
        SmallModel,
        LowRankModel,
        Generator,
        Energy,
        PublicImages,
        Coefficient,
        FeatureMean,
    )
}

Message = tuple[Payload, ...]
P = TypeVar("P", bound=Payload)


def part(message: Message, payload_type: type[P]) -> P:
    """Return the payload of a type in a message.

    Raises:
        KeyError: when the message holds none.
    """
    found = optional_part(message, payload_type)
    if found is None:
        raise KeyError(f"no {payload_type.kind} among {[payload.kind for payload in message]}")
    return found


def optional_part(message: Message, payload_type: type[P]) -> P | None:
    """Return the payload of a type in a message, or None."""
    return next((payload for payload in message if isinstance(payload, payload_type)), None)


# ---------------------------------------------------------------- files


def save_message(path: Path, message: Message, about: Mapping[str, str | int]) -> None:
    """Write a message atomically, with ``about`` (round, client, direction, ...) in the header."""
    header = {**about, "format": FORMAT, "kinds": [payload.kind for payload in message]}
    blocks = {
        f"{position}/{name}": value.detach().cpu().contiguous().clone()
        for position, payload in enumerate(message)
        for name, value in payload.tensors().items()
    }
    with whole(path) as temporary:
        # One entry, because the library writes several in no fixed order and equal messages should be equal files.
        save_file(blocks, temporary, metadata={HEADER: json.dumps(header, sort_keys=True)})


def load_message(path: Path) -> tuple[Message, dict[str, Any]]:
    """Read a message and its header.

    Raises:
        UserError: when the file is missing, is no message, or a field has a wrong name, shape, dtype or value; the
            error names the file and the field.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected a stored message")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(HEADER, "{}")
            blocks = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        header = json.loads(text)
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable safetensors file ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else header
        raise UserError(f"{path}: header says format {found!r}, expected {FORMAT!r}")
    kinds = header.get("kinds")
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise UserError(f"{path}: header field 'kinds' is missing or no list of names")
    message = tuple(_read_payload(path, position, kind, blocks) for position, kind in enumerate(kinds))
    if blocks:
        raise UserError(f"{path}: unexpected tensor {min(blocks)!r}; the header names only {', '.join(kinds)}")
    return message, header


def _read_payload(path: Path, position: int, kind: str, blocks: dict[str, Tensor]) -> Payload:
    if kind not in KINDS:
        raise UserError(f"{path}: unknown kind of payload {kind!r}; known: {', '.join(KINDS)}")
    values: dict[str, Any] = {}
    for spec in fields(KINDS[kind]):
        name = f"{position}/{spec.name}"
        if spec.metadata["shape"] == "*":
            entries = [block for block in blocks if block.startswith(name + "/")]
            values[spec.name] = {entry.removeprefix(name + "/"): blocks.pop(entry) for entry in sorted(entries)}
        elif name in blocks:
            values[spec.name] = blocks.pop(name)
        elif not spec.metadata["optional"]:
            raise UserError(f"{path}: tensor {name!r} of {kind} is missing")
    try:
        payload = KINDS[kind](**values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    wrong = payload.non_finite()
    if wrong is not None:
        raise UserError(f"{path}: {kind}.{wrong} holds NaN or infinity; expected finite numbers")
    return payload
