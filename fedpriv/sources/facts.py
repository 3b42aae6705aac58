"""Facts that only the owner of a recorded run knows: its model, whose data is whose, and the kinds of its arrays."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn

from fedpriv.attacks.observation import BatchFacts
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError, first_line, shown
from fedpriv.util.foreign import given_path, reason, toml_file
from fedpriv.util.registry import Registry, check_modules, is_reference

_FUNCTIONS = Registry("function", {})


@dataclass(frozen=True)
class Steps:
    """Local steps of every client in a round, as the app is configured."""

    learning_rate: Annotated[float, Gt(0)]  # of plain SGD
    batch_size: Annotated[int, Ge(1)]
    epochs: Annotated[int, Ge(1)] = 1  # times that a client goes over its images; the last batch of each may be smaller
    steps: Annotated[int, Ge(1)] | None = None  # batches of full size instead, where the app counts those
    optimiser: str = "sgd"  # of the steps; attacks on updates take all for plain SGD
    label_smoothing: Annotated[float, Ge(0), Lt(1)] = 0.0  # as torch's cross_entropy takes it

    def of(self, images: int) -> BatchFacts:
        """Return the batch facts of a client with so many images."""
        loss = self.optimiser, self.label_smoothing
        if self.steps is not None:
            return BatchFacts(self.batch_size, self.learning_rate, self.steps, (), *loss)
        whole, rest = divmod(images, self.batch_size)
        sizes = ([self.batch_size] * whole + [rest] * (rest > 0)) * self.epochs
        uneven = tuple(sizes) if rest and whole else ()
        return BatchFacts(max(sizes), self.learning_rate, len(sizes), uneven, *loss)


@dataclass(frozen=True)
class Normalize:
    """Transform of images in [0, 1] that the app applies before its model: (image - mean) / std, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[Annotated[float, Gt(0)], ...]


@dataclass(frozen=True)
class Facts:
    """Facts about a recorded run; whatever is left out costs the attacks that need it.

    Functions are given as such, or as texts ``package.module:NAME``. Those of a partition may take the round's number too.
    Images are ``(n, c, h, w)`` in [0, 1], beside their classes ``(n,)``.
    """

    model: Any = None  # of no argument: the architecture of uploaded weights, a module from images to logits
    data: Any = None  # of a partition: the images that were trained on, for scoring alone
    held_out: Any = None  # of a partition: images that its client did not train on; membership is not claimed without
    auxiliary: Any = None  # of no argument: images that no client has; baselines are made of them
    public: Any = None  # of no argument: the attacker's own images
    extractor: Any = None  # of a partition: its extractor after the newest round, or the one that it is given, a module
    normalize: Normalize | None = None  # of the app, where its model takes other images than those in [0, 1]
    kinds: Mapping[str, Any] = field(default_factory=dict)  # set of arrays -> kind, or ``{kind, FIELD = "array"}``
    phase: str = "train"  # asked of clients where they upload
    batch: Steps | None = None
    partitions: Mapping[str, int | str] = field(default_factory=dict)  # by client, where clients wrote no truth
    truth: str | None = None  # folder that clients wrote theirs into (default: ``$FEDPRIV_TRUTH`` or ``fedpriv-truth``)
    defense: tuple[str, ...] = ()  # of uploads before they leave: texts ``NAME[:KEY=VALUE,...]``
    n_classes: Annotated[int, Ge(2)] | None = None
    method: str | None = None  # as records call the training loop
    dataset: str | None = None  # as they call the images


NEEDED: Final = {
    "model": "model (a function of no argument: the architecture of uploaded weights",
    "data": "data (a function of a partition: images and labels; nothing can be scored without",
    "auxiliary": "auxiliary images (a function of no argument: images that no client has, and their labels",
}
"""Functions that cannot be done without."""


@dataclass(frozen=True)
class OwnerFacts:
    """Facts, and where they were stated."""

    facts: Facts
    where: str  # begins errors about them: a file, or the argument
    folder: Path  # relative paths, and modules that are found nowhere else, are below it

    def needed(self, name: str) -> int:
        """Return the number of arguments without a default that a function takes; one where it does not say."""
        try:
            takes = inspect.signature(self._function(name)).parameters.values()
        except (TypeError, ValueError):
            return 1
        return sum(entry.kind <= entry.POSITIONAL_OR_KEYWORD and entry.default is entry.empty for entry in takes)

    def _call(self, name: str, *given: Any) -> Any:
        """Call a function with as many arguments as it needs, and at least one of them."""
        function, number = self._function(name), max(self.needed(name), 1)
        with _found_below(self.folder):
            try:
                return function(*given[:number])
            except UserError:
                raise
            except Exception as error:  # somebody else's function raises anything
                call = f"{getattr(self.facts, name)}({', '.join(shown(item) for item in given[:1])})"
                why = f"{type(error).__name__}: {reason(error)}"
                raise UserError(f"{self.where}: {name}: {call} failed: {why}") from error

    def _function(self, name: str) -> Callable[..., Any]:
        made: Any = getattr(self.facts, name)
        if made is None:
            raise UserError(f"{self.where}: no {NEEDED[name]}), package.module:NAME")
        if isinstance(made, str) and is_reference(made):
            with _found_below(self.folder):
                made = _FUNCTIONS.load(made)
        if not callable(made):
            raise UserError(f"{self.where}: {name}: expected a function or package.module:NAME, got {shown(made)}")
        return made  # type: ignore[no-any-return]

    def images(self, name: str, *given: Any, labelled: bool = True) -> tuple[Any, Any]:
        """Return images and classes that a function returns, unchecked but for their number."""
        made = self._call(name, *given)
        if isinstance(made, Tensor) and not labelled:
            return made, None
        if not isinstance(made, (tuple, list)) or len(made) != 2:
            raise UserError(
                f"{self.where}: {name}: returned {type(made).__name__}; expected (images, labels): images (n, c, h, w) in "
                "[0, 1], classes (n,)"
            )
        try:
            return made[0], torch.as_tensor(made[1])
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"{self.where}: {name}: classes are no numbers ({first_line(error)}); expected (n,)"
            ) from None

    def module(self, name: str, *given: Any) -> nn.Module:
        """Return a copy of a module that a function returns, of images in [0, 1] though its app normalises them."""
        module = copy.deepcopy(self._call(name, *given))
        if not isinstance(module, nn.Module):
            raise UserError(f"{self.where}: {name}: returned {type(module).__name__}; expected a torch.nn.Module")
        return normalising(module, self.facts.normalize)


def read_facts(run: Path, given: Any) -> OwnerFacts:
    """Return the facts of a recorded run."""
    if isinstance(given, Mapping):
        return OwnerFacts(parse(Facts, given, "facts"), "facts", Path.cwd())
    beside = run.absolute().with_name(run.absolute().name + ".toml")
    path = beside if given is None else given_path("facts", given)
    if given is None and not path.exists():
        return OwnerFacts(Facts(), f"facts (no {path.name} beside the run)", path.parent)
    facts = parse(Facts, toml_file(path, expected="facts about a recorded run, in TOML"), str(path))
    functions = (facts.model, facts.data, facts.held_out, facts.auxiliary, facts.public, facts.extractor)
    check_modules(*(name for name in functions if isinstance(name, str) and is_reference(name)), file=path)
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


def normalising(network: nn.Module, normalize: Normalize | None) -> nn.Module:
    """Return a network that takes images in [0, 1] though it was trained on normalised ones; it is changed."""
    if normalize is not None:
        network.register_forward_pre_hook(partial(_normalized, normalize))
    return network


def _normalized(normalize: Normalize, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Normalise images on their way into a module; a function of its own, so that copies and pickles keep it."""
    images, *others = given
    mean, std = (torch.tensor(each)[:, None, None].to(images) for each in (normalize.mean, normalize.std))
    return (images - mean) / std, *others
