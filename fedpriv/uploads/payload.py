"""The contract of payloads: tensors with declared shapes, and traits that say all there is to know about a kind.

A *message* is a tuple of payloads, in either direction. Whatever depends on the kind of a payload (which attacks fit it,
what a defense may change of it, what it was computed from) is asked of its traits, never of a list of kinds.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeVar, get_args

import numpy as np

from fedpriv.util.errors import UserError, shown

if TYPE_CHECKING:  # kinds and their traits are asked for without tensors too
    from torch import Tensor

MOST_VALUES: Final = 1 << 30  # values of one tensor, counted as its copy would have them: 4 GiB of float32
MOST_ENTRIES: Final = 100_000  # tensors of one mapping from names: the deepest network of torchvision has 2,000
LONGEST_NAME: Final = 300  # characters of a parameter's name


def check_plain(where: str, value: object) -> Tensor:
    """Return a tensor that is plain: no subclass but a parameter, dense, neither quantised, nested nor without data."""
    import torch
    from torch import Tensor, nn

    if not isinstance(value, Tensor):
        raise UserError(f"{where}: expected a tensor, got {type(value).__name__}")
    fault = ""
    if type(value) not in (Tensor, nn.Parameter, getattr(nn, "Buffer", Tensor)):
        fault = f"a {type(value).__name__}"  # first, since every look at a subclass runs its code
    elif value.is_meta:
        fault = "a tensor on the meta device, which holds no values"
    elif value.is_nested:
        fault = "a nested tensor"
    elif value.layout != torch.strided:
        fault = f"a tensor of layout {value.layout}"
    elif value.is_quantized:
        fault = f"a quantised tensor, {value.dtype}"
    elif any(getattr(value, "names", ())):  # of some versions of torch
        fault = "a tensor whose axes have names"
    if fault:
        raise UserError(f"{where}: {fault}; expected a plain, dense torch.Tensor of numbers")
    if value.numel() > MOST_VALUES:
        raise UserError(f"{where}: {value.numel():,} values, shape {tuple(value.shape)}; at most {MOST_VALUES:,}")
    return value


def from_array(where: str, array: np.ndarray) -> Tensor:
    """Return a NumPy array of numbers as a tensor that shares no memory with it."""
    import torch

    what = "a masked array" if isinstance(array, np.ma.MaskedArray) else f"an array of {shown(str(array.dtype))}"
    if array.dtype.kind not in "fiub" or isinstance(array, np.ma.MaskedArray):
        raise UserError(f"{where}: expected numbers, got {what}")
    if array.size > MOST_VALUES:
        raise UserError(f"{where}: {array.size:,} values, shape {array.shape}; at most {MOST_VALUES:,}")
    try:
        return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True))
    except TypeError as error:
        raise UserError(f"{where}: {what}, which no tensor holds") from error


def as_tensor(where: str, value: object) -> Tensor:
    """Return numbers in an array or in lists, a list of tensors to be stacked, or a tensor as a plain tensor."""
    import torch

    if isinstance(value, (list, tuple, range)):
        try:
            if value and all(isinstance(row, torch.Tensor) for row in value):
                return torch.stack([check_plain(f"{where}[{index}]", row).detach() for index, row in enumerate(value)])
            value = np.asarray(value)
        except UserError:
            raise
        except Exception as error:  # of an object with an array's protocols anything
            raise UserError(f"{where}: expected numbers, in rows of one length, got a list of others") from error
    return from_array(where, value) if isinstance(value, np.ndarray) else check_plain(where, value)


def all_finite(value: Tensor) -> bool:
    """True if no number is NaN or infinite. A sum that is finite says so in one pass; finite numbers may add up to more."""
    return bool(value.sum().isfinite()) or bool(value.isfinite().all())


def check_names(where: str, names: list[object]) -> None:
    """Check that tensors are called by printable texts of a usual length, and are not too many."""
    if len(names) > MOST_ENTRIES:
        raise UserError(f"{where}: {len(names):,} tensors; at most {MOST_ENTRIES:,} may be named")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise UserError(
                f"{where}: a tensor is called {shown(name)}; expected a printable text of at most {LONGEST_NAME} characters"
            )


Origin = Literal["image", "class", "mixture", "client", "training", "public", "server"]
"""The origin of a row of the values: one image; the images of a class, as their mean; all of a client's images,
as a weighted sum, or otherwise (``client``); gradients of them (``training``); public inputs through a trained network;
nothing of any client (``server``)."""

Space = Literal["representation", "outputs", "weights", "factors", "kernel", "counts", "pixels", "number"]
"""Where the values live: representations of width d; class outputs; parameters of a network as they are, or as factors of
truncated singular value decompositions; similarities of inputs; numbers of images; images; one hyperparameter, or places in
a public set."""

Network = Literal["whole", "small", "extractor", "head", "mapping", "generator"]
"""Which network's weights: the client's own, whole; a smaller one shared beside it; the own one's extractor or head; a
matrix between the two; a generator of representations."""

Aggregation = Literal["mean", "sum", "none"]
"""The view of a server that sees only the sum over clients: the weighted mean entry by entry, the sum, or nothing that
is of use to it."""

Says = Literal["classes", "counts", "weights", "histogram", "size"]
"""Meaning of a private field that is no value: the class of each row; how many images each row is a mean of; the weight of
each class in a mixture; how many images of each class there are; how many there are."""

TRAITS: Mapping[str, tuple[Any, ...]] = {
    "computed_from": get_args(Origin),
    "space": get_args(Space),
    "aggregation": get_args(Aggregation),
    "once": (False, True),
}
"""Traits that every kind declares, and their values; weights and factors declare their ``network`` besides."""

DECLARED: dict[str, type[Payload]] = {}  # every kind of payload that was defined in this process
P = TypeVar("P", bound="Payload")


def tensor(
    shape: str,
    *,
    private: bool,
    says: Says | None = None,
    paper: bool | None = None,
    integer: bool = False,
    optional: bool = False,
) -> Any:
    """Declare a tensor field.

    Args:
        shape: axis letters separated by blanks; equal letters within one payload must have equal lengths.
        private: whether it was computed from the client's images (True) or is metadata (False).
        says: what it tells in clear; None for the values of the payload.
        paper: whether the field's habit of counting communication counts it; by default it does, unless it says something
            (labels, ids and counts are left out).
        integer: int64 instead of float32.
        optional: may be None.
    """
    counted = says is None if paper is None else paper
    meta = dict(shape=shape, private=private, says=says, paper=counted, integer=integer, optional=optional)
    return field(default=None, metadata=meta) if optional else field(metadata=meta)


def state(*, private: bool = True) -> Any:
    """Declare a field that maps parameter names to tensors of any shape."""
    return tensor("*", private=private)


@dataclass(frozen=True)
class Payload:
    """One kind of thing that is sent. Lists and NumPy arrays of numbers are taken for tensors.

    Subclasses are frozen dataclasses that declare traits and fields::

        @dataclass(frozen=True)
        class Directions(
            Payload, kind="direction", computed_from="class", space="representation", aggregation="none", once=False
        ):
            features: Tensor = tensor("c d", private=True)
            classes: Tensor = tensor("c", private=True, integer=True, says="classes")
    """

    kind: ClassVar[str]  # name, unlike any other kind's
    computed_from: ClassVar[Origin]
    space: ClassVar[Space]
    aggregation: ClassVar[Aggregation]
    once: ClassVar[bool]  # whether a client sends it in its first round only
    network: ClassVar[Network | None] = None  # of weights and factors alone

    def __init_subclass__(cls, **traits: Any) -> None:
        """Register a kind."""
        super().__init_subclass__()
        known = ("kind", "network", *TRAITS)
        for name, value in traits.items():
            if name not in known:
                raise UserError(f"payload {cls.__qualname__}: unknown trait {name!r}; known: {', '.join(known)}")
            setattr(cls, name, value)
        _check_declaration(cls)
        taken = DECLARED.get(cls.kind)
        if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
            raise UserError(
                f"payload {cls.__qualname__}: kind {cls.kind!r} is taken by {taken.__module__}:{taken.__qualname__}; "
                "take another name"
            )
        DECLARED[cls.kind] = cls

    def __post_init__(self) -> None:
        import torch

        for spec in fields(self):
            value, where = getattr(self, spec.name), f"{self.kind}.{spec.name}"
            if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
                # Sorted, so that a payload is the same whether it was just made or read back.
                value = {
                    name: from_array(f"{where}/{name}", entry) if isinstance(entry, np.ndarray) else entry
                    for name, entry in sorted(value.items())
                }
                object.__setattr__(self, spec.name, types.MappingProxyType(value))
            elif isinstance(value, (list, tuple, np.ndarray)) and spec.metadata["shape"] != "*":
                numbers, integer = as_tensor(where, value), spec.metadata["integer"]
                if numbers.is_complex() or (integer and (numbers.is_floating_point() or numbers.dtype == torch.bool)):
                    expected = "whole numbers" if integer else "numbers"
                    raise UserError(f"{where}: expected {expected}, got {numbers.dtype}")
                object.__setattr__(self, spec.name, numbers.to(torch.int64 if integer else torch.float32))
        self.check()

    def tensors(self) -> dict[str, Tensor]:
        """Return every tensor by name; the entries of a mapping field are called ``field/entry``."""
        values: dict[str, Tensor] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Mapping):
                values.update({f"{spec.name}/{name}": entry for name, entry in value.items()})
            elif value is not None:
                values[spec.name] = value
        return values

    @classmethod
    def values_field(cls) -> str | None:
        """Return the name of the field that was computed from images; None where there is none but what it says."""
        return next((s.name for s in fields(cls) if s.metadata["private"] and s.metadata["says"] is None), None)

    @classmethod
    def field_that_says(cls, what: Says) -> str | None:
        """Return the name of the field that tells something in clear, or None."""
        return next((spec.name for spec in fields(cls) if spec.metadata["says"] == what), None)

    def said(self, what: Says) -> Tensor | None:
        """Return the tensor by which the payload tells something in clear; None where it does not."""
        name = self.field_that_says(what)
        values: Tensor | None = None if name is None else getattr(self, name)
        return values

    def rows(self) -> Tensor:
        """Return the values ``(n, d)`` one row each; only of kinds whose space is representations or class outputs."""
        values: Tensor = getattr(self, str(self.values_field()))
        return values if values.dim() == 2 else values[None]

    def parameters(self) -> Mapping[str, Tensor]:
        """Return the values by parameter's name; only of kinds whose space is weights or factors."""
        name = str(self.values_field())
        values: Tensor | Mapping[str, Tensor] = getattr(self, name)
        return values if isinstance(values, Mapping) else {name: values}

    def row_classes(self) -> Tensor | None:
        """Return the class of each row ``(n,)`` int64, of a mixture its heaviest; None where the payload tells none."""
        weights = self.said("weights")
        return self.said("classes") if weights is None else weights.argmax()[None]

    def before(self, sent: Payload) -> dict[str, Tensor]:
        """Return the broadcast tensors by name that an upload of this kind is the difference from."""
        return sent.tensors()

    def addable(self) -> Payload:
        """Return the form in which clients' payloads can be added entry by entry."""
        return self

    def check(self) -> None:
        """Check types, shapes and dtypes."""
        axes: dict[str, int] = {}
        for spec in fields(self):
            value = getattr(self, spec.name)
            if value is None and spec.metadata["optional"]:
                continue
            where = f"{self.kind}.{spec.name}"
            if spec.metadata["shape"] != "*":
                _check_tensor(where, value, spec.metadata, axes)
                continue
            if not isinstance(value, Mapping):
                raise UserError(f"{where}: expected tensors by name, got {type(value).__name__}")
            check_names(where, [*value])
            for name, entry in value.items():
                check_plain(f"{where}/{name}", entry)

    def non_finite(self) -> str | None:
        """Return the name of the first tensor that holds NaN or infinity, or None."""
        return next((n for n, t in self.tensors().items() if t.is_floating_point() and not all_finite(t)), None)


def _check_tensor(where: str, value: object, meta: Mapping[str, Any], axes: dict[str, int]) -> None:
    value = check_plain(where, value)
    letters = meta["shape"].split()
    if value.dim() != len(letters):
        raise UserError(f"{where}: expected shape ({', '.join(letters)}), got {tuple(value.shape)}")
    for letter, size in zip(letters, value.shape, strict=True):
        expected = int(letter) if letter.isdigit() else axes.setdefault(letter, size)
        if expected != size:
            raise UserError(f"{where}: axis {letter} should be {expected}, got shape {tuple(value.shape)}")
    wanted = "torch.int64" if meta["integer"] else "torch.float32"
    if str(value.dtype) != wanted:
        raise UserError(f"{where}: expected {wanted}, got {value.dtype}")


def _check_declaration(cls: type[Payload]) -> None:
    """Check traits and fields before :func:`dataclasses.dataclass` has seen them, as a kind is registered when defined."""
    where = f"payload {cls.__qualname__}"
    if not isinstance(vars(cls).get("kind"), str):
        raise UserError(f"{where}: declares no kind; expected a name of its own")
    networked = getattr(cls, "space", None) in ("weights", "factors")
    for name, allowed in {**TRAITS, "network": get_args(Network) if networked else (None,)}.items():
        value = getattr(cls, name, None)
        if value not in allowed:
            raise UserError(f"{where}: trait {name}={value!r}; expected one of {', '.join(map(repr, allowed))}")
    inherited = getattr(cls, "__dataclass_fields__", {}).values()
    metas: dict[str, Mapping[str, Any]] = {spec.name: spec.metadata for spec in inherited if spec.metadata}
    for name, hint in vars(cls).get("__annotations__", {}).items():
        if "ClassVar" not in str(hint):
            made = vars(cls).get(name)
            if not isinstance(made, Field) or "says" not in made.metadata:
                raise UserError(f"{where}: field {name!r}: declare it with tensor() or state()")
            metas[name] = made.metadata
    needed = {"image": "classes", "class": "classes", "mixture": "weights"}.get(cls.computed_from)
    if needed is not None and all(meta["says"] != needed for meta in metas.values()):
        raise UserError(f"{where}: computed_from={cls.computed_from!r} takes a field that says={needed!r}")
    values = [name for name, meta in metas.items() if meta["private"] and meta["says"] is None]
    expected = 0 if cls.space == "counts" else 1
    if len(values) != expected and cls.computed_from != "server":
        listed = ", ".join(values) or "none"
        raise UserError(f"{where}: space {cls.space!r} takes {expected} private field(s) of values, got {listed}")


Message = tuple[Payload, ...]


def get_payload(message: Message, payload_type: type[P]) -> P:
    """Return the payload of a type in a message, as :func:`find_payload`; KeyError when the message holds none."""
    result = find_payload(message, payload_type)
    if result is None:
        raise KeyError(f"no {payload_type.kind} among {[payload.kind for payload in message]}")
    return result


def find_payload(message: Message, payload_type: type[P]) -> P | None:
    """Return the payload of a type in a message, or None.

    A payload of another kind with the same traits is returned as one of the type.
    """
    for payload in message:
        if isinstance(payload, payload_type):
            return payload
    return next((result for payload in message if (result := _as(payload, payload_type)) is not None), None)


def _as(payload: Payload, wanted: type[P]) -> P | None:
    if any(getattr(payload, trait) != getattr(wanted, trait) for trait in ("computed_from", "space", "network")):
        return None
    values: dict[str, Any] = {}
    for spec in fields(wanted):
        says = spec.metadata["says"]
        name = payload.values_field() if says is None else payload.field_that_says(says)
        if says is None and not spec.metadata["private"]:  # metadata: known by its name alone
            name = spec.name if spec.name in payload.tensors() else None
        values[spec.name] = None if name is None else getattr(payload, name)
    lacking = any(values[spec.name] is None and not spec.metadata["optional"] for spec in fields(wanted))
    return None if lacking else wanted(**values)
