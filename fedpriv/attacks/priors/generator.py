"""Images that a generator draws, searched for by their codes: a prior that somebody else trained.

fedpriv ships no weights. A user hands over a generator, from codes ``(n, k)`` to images ``(n, c, h, w)`` in [0, 1].
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedpriv.util.code import check_script
from fedpriv.util.errors import UserError
from fedpriv.util.foreign import Limit, check_file
from fedpriv.util.registry import Registry, is_reference

NETWORK = Limit(4 * 1024**3, "a generator in TorchScript")
"""The largest generators of images of a few hundred pixels have a tenth of it."""


def refuse_no_generator(name: str, found: object) -> None:
    """Check what another package calls a generator.

    Raises:
        UserError: for what is neither a network nor makes one.
    """
    if not callable(found):
        raise UserError(f"expected a torch.nn.Module, or a function without arguments that returns one, got {found!r}")


GENERATORS = Registry(
    "generator",
    {},
    group="fedpriv.generators",
    contract="fedpriv.attacks.priors.generator:refuse_no_generator",
)
"""Names of generators, all of which are from outside."""


def load_generator(source: str, code: int, image_shape: tuple[int, int, int], device: torch.device) -> nn.Module:
    """Return a generator, ready to be searched through.

    Args:
        source: ``package.module:NAME`` of a network or of a function that makes one, the name of an entry point, or the
            path of a TorchScript file.
        code: numbers k in a code.
        image_shape: (channels, height, width) that it has to draw.
        device: where to compute.

    Raises:
        UserError: for what cannot be had, or does not lead from codes ``(n, k)`` to such images.
    """
    check_source(source)
    named = is_reference(source) or source in GENERATORS
    network = _made(source, GENERATORS.load(source)) if named else _scripted(Path(source))
    network = network.to(device).eval()
    for value in network.parameters():  # one read from a file has no requires_grad_ of its own
        value.requires_grad_(False)
    _refuse_other_images(source, network, code, image_shape, device)
    return network


def check_source(source: str) -> None:
    """Check that a generator may be loaded: a module, or a program in TorchScript, that the user named or allowed.

    Raises:
        UserError: naming the file that names it.
    """
    if is_reference(source):
        GENERATORS.check(source)
    elif source and source not in GENERATORS:
        check_script(source)


def _made(source: str, found: object) -> nn.Module:
    if not isinstance(found, nn.Module) and callable(found):
        try:
            found = found()
        except Exception as error:  # another package may fail in any way
            raise UserError(f"generator {source!r} cannot be made: {type(error).__name__}: {_line(error)}") from error
    if not isinstance(found, nn.Module):
        raise UserError(f"generator {source!r} is {type(found).__name__}; expected a torch.nn.Module")
    return copy.deepcopy(found)  # a user's own network keeps its mode and its place


def _scripted(path: Path) -> nn.Module:
    check_file(path, NETWORK, f"generator {str(path)!r}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of later versions, in which this reader may be gone
            found: nn.Module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call,unused-ignore]
    except Exception as error:  # whatever the file holds
        raise UserError(
            f"generator {str(path)!r} is no TorchScript file; expected one written by torch.jit.save, or PACKAGE.MODULE:NAME"
        ) from error
    return found


def _refuse_other_images(
    source: str, network: nn.Module, code: int, image_shape: tuple[int, int, int], device: torch.device
) -> None:
    try:
        with torch.no_grad():
            shown = network(torch.zeros(2, code, device=device))
    except Exception as error:
        raise UserError(
            f"generator {source!r} does not take codes of {code} numbers (an array of 2 x {code}): "
            f"{type(error).__name__}: {_line(error)}"
        ) from error
    wanted = (2, *image_shape)
    if not isinstance(shown, Tensor) or tuple(shown.shape) != wanted:
        got = tuple(shown.shape) if isinstance(shown, Tensor) else type(shown).__name__
        raise UserError(f"generator {source!r} gives {got} for 2 codes; expected images of shape {wanted} in [0, 1]")
    if not bool(shown.isfinite().all()):
        raise UserError(f"generator {source!r} gives images that are not finite")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[-200:]


class GeneratedImages:
    """The codes of N rows: a prior for :func:`fedpriv.attacks.search.fit.fit`.

    Args:
        generators: N CPU generators of random numbers, one a row; each draws its row's first code from N(0, 1).
        network: from codes ``(n, k)`` to images ``(n, c, h, w)``, which are clamped to [0, 1].
        code: k.
        decay: share by which codes shrink in each step towards the middle of their normal distribution.
        device: where to compute.
    """

    def __init__(
        self,
        generators: Sequence[torch.Generator],
        network: Callable[[Tensor], Tensor],
        code: int,
        decay: float,
        device: torch.device,
    ) -> None:
        self._network, self._decay = network, decay
        start = torch.stack([torch.randn(code, generator=generator) for generator in generators])
        self.parameters = [start.to(device).requires_grad_()]

    def prepare(self, progress: float) -> Hashable:
        """Draw nothing. The network is somebody else's, which may do something else each time."""
        return None

    def shown(self, moving: Tensor) -> Tensor:
        """Return the images ``(N, c, h, w)``: there is no noise."""
        return self.clean()

    def clean(self) -> Tensor:
        """Return the images ``(N, c, h, w)`` of the present codes."""
        return self._network(self.parameters[0]).clamp(0, 1)

    def penalty(self, images: Tensor, rows: Tensor) -> Tensor:
        """Return zeros ``(N,)``: the generator itself is the prior, and its codes are held by :meth:`project`."""
        return images.new_zeros(len(images))

    def project(self) -> None:
        """Draw the codes a little towards the middle of their distribution."""
        with torch.no_grad():
            self.parameters[0].mul_(1 - self._decay)

    def compile(self) -> None:
        """Leave the network as it is: it is somebody else's."""

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, ``rows`` being int64 positions on the CPU."""
        there = rows.to(self.parameters[0].device)
        self.parameters = [self.parameters[0].detach()[there].requires_grad_()]
