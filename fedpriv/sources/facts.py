"""Facts that only the owner of a recorded run knows: its model, whose data is whose, and the kinds of its arrays."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from fedpriv.attacks.observation import BatchFacts
from fedpriv.util.code import check_modules
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError, shown
from fedpriv.util.foreign import given_path, reason, toml_file
from fedpriv.util.registry import Registry, is_reference

_FUNCTIONS = Registry("function", {})


@dataclass(frozen=True)
class Steps:
    """Local steps of every client in a round, as the app is configured.

    Attributes:
        learning_rate: of plain SGD.
        batch_size: images in a batch.
        epochs: times that a client goes over its images; the last batch of each may be smaller.
        steps: batches of full size instead, where the app counts those.
        optimiser: of the steps; attacks on updates take all for plain SGD.
    """

    learning_rate: Annotated[float, Gt(0)]
    batch_size: Annotated[int, Ge(1)]
    epochs: Annotated[int, Ge(1)] = 1
    steps: Annotated[int, Ge(1)] | None = None
    optimiser: str = "sgd"

    def of(self, images: int) -> BatchFacts:
        """Return the batch facts of a client with so many images."""
        if self.steps is not None:
            return BatchFacts(self.batch_size, self.learning_rate, self.steps, optimiser=self.optimiser)
        whole, rest = divmod(images, self.batch_size)
        sizes = ([self.batch_size] * whole + [rest] * (rest > 0)) * self.epochs
        uneven = tuple(sizes) if rest and whole else ()
        return BatchFacts(max(sizes), self.learning_rate, len(sizes), uneven, self.optimiser)


@dataclass(frozen=True)
class Normalize:
    """Transform of images in [0, 1] that the app applies before its model: (image - mean) / std, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[Annotated[float, Gt(0)], ...]


@dataclass(frozen=True)
class Facts:
    """Facts about a recorded run; whatever is left out costs the attacks that need it.

    Functions are given as such, or as texts ``package.module:NAME``.

    Attributes:
        model: of no argument: the architecture of uploaded weights, a module from images to logits.
        data: of a partition, and of the round too where it takes two arguments: the images ``(n, c, h, w)`` in [0, 1] that
            were trained on, and their classes ``(n,)``. For scoring alone.
        held_out: of a partition: images that its client holds and did not train on, and their classes: the non-members of
            membership inference, without which it claims no leak.
        auxiliary: of no argument: images that no client has, and their classes; baselines are made of them.
        auxiliary_alike: whether one data set was divided, and chance alone decided which images of a class clients hold and
            which are auxiliary images: what attacks tell from decoys is then held against chance itself.
        public: of no argument: the attacker's own images and their classes.
        extractor: of a partition: its extractor after the newest round, a module from images to representations ``(n, d)``.
            Of a partition and a round: after that round, which attacks on all rounds together need.
        normalize: of the app, where its model takes other images than those in [0, 1].
        kinds: name of a set of arrays -> kind of upload, or a table ``{kind, FIELD = "name of the array"}``. A set that is
            not named is taken for a ``model``.
        phase: what clients are asked for where they upload.
        batch: local steps.
        partitions: client -> partition, where no truth was written on the clients' side.
        truth: folder that clients wrote theirs into (default: ``$FEDPRIV_TRUTH``, or ``fedpriv-truth``).
        defense: what clients do to uploads before they leave: texts ``NAME[:KEY=VALUE,...]``.
        n_classes: C.
        method: what records call the training loop.
        dataset: what they call the images.
    """

    model: Any = None
    data: Any = None
    held_out: Any = None
    auxiliary: Any = None
    auxiliary_alike: bool = False
    public: Any = None
    extractor: Any = None
    normalize: Normalize | None = None
    kinds: Mapping[str, Any] = field(default_factory=dict)
    phase: str = "train"
    batch: Steps | None = None
    partitions: Mapping[str, int | str] = field(default_factory=dict)
    truth: str | None = None
    defense: tuple[str, ...] = ()
    n_classes: Annotated[int, Ge(2)] | None = None
    method: str | None = None
    dataset: str | None = None


@dataclass(frozen=True)
class OwnerFacts:
    """Facts, and where they were stated.

    Attributes:
        facts: as they were given.
        where: begins errors about them: a file, or the argument.
        folder: that relative paths, and modules that are found nowhere else, are below.
    """

    facts: Facts
    where: str
    folder: Path

    def call(self, name: str, *given: Any) -> Any:
        """Call one of the functions; two arguments at most are passed, as many as it takes."""
        made = self._function(name)
        needed = _needed(name, made, len(given))
        with _found_below(self.folder):
            try:
                return made(*given[: max(needed, min(len(given), 1))])
            except UserError:
                raise
            except Exception as error:  # somebody else's function raises anything
                call = f"{getattr(self.facts, name)}({', '.join(shown(item) for item in given[:1])})"
                why = f"{type(error).__name__}: {reason(error)}"
                raise UserError(f"{self.where}: {name}: {call} failed: {why}") from error

    def takes_a_round(self, name: str) -> bool:
        """Return True where a function of a partition takes the number of a round too."""
        return getattr(self.facts, name) is not None and _needed(name, self._function(name), 1) > 1

    def _function(self, name: str) -> Callable[..., Any]:
        given, where = getattr(self.facts, name), f"{self.where}: {name}"
        made: Any = given
        if isinstance(given, str) and is_reference(given):
            with _found_below(self.folder):
                try:
                    made = _FUNCTIONS.load(given)
                except UserError as error:
                    raise UserError(f"{where}: {error}") from error
        if not callable(made):
            raise UserError(f"{where}: expected a function or package.module:NAME, got {shown(made)}")
        function: Callable[..., Any] = made
        return function

    def images(self, name: str, *given: Any, labelled: bool = True) -> tuple[Any, Any]:
        """Return images and classes that a function returns, unchecked but for their number."""
        made = self.call(name, *given)
        if isinstance(made, Tensor) and not labelled:
            return made, None
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise UserError(
                f"{self.where}: {name}: returned {type(made).__name__}; expected (images, labels): images (n, c, h, w) in "
                "[0, 1], classes (n,)"
            )
        return made[0], torch.as_tensor(made[1])


def _needed(name: str, made: Callable[..., Any], otherwise: int) -> int:
    """Return the number of arguments that a function wants: without a default, of ``data`` all; ``otherwise`` if unknown."""
    try:
        takes = [
            parameter
            for parameter in inspect.signature(made).parameters.values()
            if parameter.kind <= parameter.POSITIONAL_OR_KEYWORD
        ]
    except (TypeError, ValueError):
        return otherwise
    return len(takes) if name == "data" else sum(take.default is take.empty for take in takes)


def read_facts(run: Path, given: Any) -> OwnerFacts:
    """Return the facts of a recorded run."""
    if isinstance(given, Mapping):
        return OwnerFacts(parse(Facts, given, "facts"), "facts", Path.cwd())
    beside = run.absolute().with_name(run.absolute().name + ".toml")
    path = beside if given is None else given_path("facts", given)
    if given is None and not path.exists():
        return OwnerFacts(Facts(), f"facts (no {path.name} beside the run)", path.parent)
    facts = parse(Facts, toml_file(path, expected="facts about a recorded run, in TOML"), str(path))
    functions = (facts.model, facts.data, facts.auxiliary, facts.public, facts.extractor)
    check_modules(
        *(function for function in functions if isinstance(function, str) and is_reference(function)), file=path
    )
    return OwnerFacts(facts, str(path), path.absolute().parent)


@contextlib.contextmanager
def _found_below(folder: Path) -> Iterator[None]:
    """Let modules in a folder, and in the working directory, be found, after all others."""
    before = list(sys.path)
    sys.path += [str(folder), str(Path.cwd())]
    try:
        yield
    finally:
        sys.path[:] = before


class _Normalized:
    """Normalises images on their way into a module; a class of its own, so that copies and pickles keep it."""

    def __init__(self, normalize: Normalize) -> None:
        self.mean, self.std = (torch.tensor(each)[:, None, None] for each in (normalize.mean, normalize.std))

    def __call__(self, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        images, *others = given
        return (images - self.mean.to(images)) / self.std.to(images), *others


def normalized(module: Any, normalize: Normalize | None) -> Any:
    """Return a module that takes images in [0, 1], with the same names of parameters."""
    if normalize is not None and isinstance(module, nn.Module):
        module.register_forward_pre_hook(_Normalized(normalize))
    return module
