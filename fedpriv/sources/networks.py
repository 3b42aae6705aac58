"""Networks from elsewhere: copied, checked, and made to have one tensor as output and second derivatives wherever torch can.

Attacks differentiate gradients. Fused attention and the hard activations have no second derivative in torch; the formulas
that they stand for have one, and are computed in their place.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.gradients.update import LocalStep
from fedpriv.attacks.observation import BatchFacts
from fedpriv.sources.messages import Gradient, Raw, Update, weights
from fedpriv.uploads.payload import check_plain
from fedpriv.util.errors import UserError, first_line

_DROPOUTS: Final = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
_FORMULAS: Final[dict[Any, Callable[..., Tensor]]] = {
    functional.hardsigmoid: lambda x, inplace=False: functional.relu6(x + 3) / 6,
    functional.hardswish: lambda x, inplace=False: x * functional.relu6(x + 3) / 6,
    **{getattr(functional, name): lambda x, *_, **__: x for name in _DROPOUTS},
}
"""Functions without a second derivative in torch, as formulas that have one; and dropout, whose masks nobody else knows."""

_RATES: Final = {"MultiheadAttention": "dropout", "RNN": "dropout", "StochasticDepth": "p", "DropPath": "drop_prob"}
"""Layers that drop something by themselves, and the attribute that says how often."""


_PREFIX: Final = "module."  # of names of parameters within DataParallel

# Of layers that torch computes one candidate after the other (LSTM): slower, and as right.
warnings.filterwarnings("ignore", "There is a performance drop", UserWarning, r"fedpriv\.|torch\.")


class _Formulas(TorchFunctionMode):
    """Computes functions without a second derivative by formulas that have one; no fused attention layer is taken either."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _FORMULAS.get(func, func)(*args, **(kwargs or {}))


class _Adapted:
    """Goes before a network's own class: its forward pass can be differentiated twice, and returns one tensor."""

    logits_key = ""  # of an output that holds several tensors
    recurrent = False

    def forward(self, *images: Any) -> Any:
        """Return logits, or representations, where the network's output says which tensor they are; else the output."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self.recurrent:  # those of cuDNN have none
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            stack.enter_context(_Formulas())
            made = super().forward(*images)  # type: ignore[misc]
        if isinstance(made, Mapping):
            tables = [value for value in made.values() if _is_table(value)]
            return made[self.logits_key] if self.logits_key in made else tables[0] if len(tables) == 1 else made
        return made[0] if isinstance(made, (tuple, list)) and made and _is_table(made[0]) else made


def _is_table(value: object) -> bool:
    return isinstance(value, Tensor) and value.dim() == 2


def copied(name: str, network: Any, device: torch.device, notices: list[str]) -> nn.Module:
    """Return an adapted float32 copy of a network in evaluation mode: attacks change nothing of what was handed in.

    A line is added to ``notices`` where weights had another precision. Parameters ask for gradients as they did.
    """
    if not isinstance(network, nn.Module):
        raise UserError(f"{name}: expected a torch.nn.Module, got {type(network).__name__}")
    if isinstance(network, torch.jit.ScriptModule):
        raise UserError(f"{name}: a torch.jit module cannot be differentiated twice; pass the original torch.nn.Module")
    if isinstance(network, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        network = network.module
    for key, value in network.state_dict().items():
        if isinstance(value, Tensor) and not bool(check_plain(f"{name}: {key}", value).isfinite().all()):
            raise UserError(f"{name}: {key} holds NaN or infinity; expected finite numbers")
    try:
        result: nn.Module = copy.deepcopy(network).to(device).eval()
    except Exception as error:  # a network of somebody else raises anything
        raise UserError(f"{name}: {type(network).__name__} cannot be copied to {device}: {error}") from error
    others = {str(value.dtype) for value in result.parameters()} - {str(torch.float32)}
    if others:
        notices.append(f"{name}: weights of {', '.join(sorted(others))}; a float32 copy is attacked")
        result.float()
    for layer in result.modules():
        kind = "RNN" if isinstance(layer, nn.RNNBase) else type(layer).__name__
        if kind in _RATES:
            setattr(layer, _RATES[kind], 0.0)
    traits = {
        "logits_key": "logits" if name == "model" else "",
        "recurrent": any(isinstance(layer, nn.RNNBase) for layer in result.modules()),
    }
    result.__class__ = type(type(result).__name__, (_Adapted, type(result)), traits)
    return result


@torch.no_grad()
def width_of(where: str, network: nn.Module, images: Tensor, rows: str) -> int:
    """Return the width of what a network makes of images ``(n, c, h, w)``; ``rows`` says what it should be in errors."""
    device = next(network.parameters(), images).device
    try:
        made = network(images.to(device))
    except Exception as error:  # a network of somebody else raises anything
        raise UserError(f"{where}: fails on images {tuple(images.shape[1:])}: {first_line(error)}") from error
    if not isinstance(made, Tensor) or made.dim() != 2 or len(made) != len(images):
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        wrap = (
            "" if isinstance(made, Tensor) else "; wrap it in a torch.nn.Module whose forward returns that tensor alone"
        )
        raise UserError(f"{where}: expected {rows} of images (n, c, h, w), got {got}{wrap}")
    if not made.is_floating_point() or not bool(check_plain(where, made).isfinite().all()):
        raise UserError(f"{where}: returns NaN, infinity or {made.dtype} on images; expected finite floats")
    return made.shape[1]


def by_parameter(model: nn.Module, uploads: Mapping[int, Raw]) -> dict[int, Raw]:
    """Return updates and gradients by the model's names, and make what no client trains a constant of the model.

    That is each parameter without ``requires_grad`` of which no upload holds a change, or a gradient that is not zero. In
    updates its value before is taken over.
    """
    named = {client: _named(model, upload) for client, upload in uploads.items()}
    fixed = {name for name, value in model.named_parameters() if not value.requires_grad}
    if len(fixed) == len([*model.parameters()]):  # frozen for evaluation
        fixed = set()
    starts: dict[str, Tensor] = {}
    for upload in named.values():
        fixed -= _trained(upload, fixed, starts)
    model.requires_grad_(False)
    for layer_name, layer in [*model.named_modules()]:
        for key, value in [*layer.named_parameters(recurse=False)]:
            name = f"{layer_name}.{key}" if layer_name else key
            if name in fixed:
                delattr(layer, key)
                layer.register_buffer(key, starts.get(name, value.detach()).to(value.device))
    return named


def _named(model: nn.Module, upload: Raw) -> Raw:
    """Return an upload by the model's names, without the prefix of DataParallel; None becomes zeros where it is trained."""
    own = dict(model.named_parameters())
    if isinstance(upload, Update):
        return Update(_without_prefix(upload.before, own), _without_prefix(upload.after, own))
    if not isinstance(upload, Gradient):
        return upload
    values: Any = upload.values
    if isinstance(values, (list, tuple)):
        trained = [name for name, value in own.items() if value.requires_grad]
        names = trained if len(values) == len(trained) else [*own]
        if len(values) != len(names):
            there = f"{len(own)} parameters, {len(trained)} of them with requires_grad"
            raise UserError(f"uploads: a gradient of {len(values)} tensors, but the model has {there}")
        values = dict(zip(names, values, strict=True))
    values = _without_prefix(values, own)
    if isinstance(values, Mapping):
        unused = {
            name: torch.zeros_like(own[name]).detach()
            for name, value in values.items()
            if value is None and name in own
        }
        values = {name: unused.get(name, value) for name, value in values.items()}
    return Gradient(values)


def _without_prefix(values: Any, own: Mapping[str, Tensor]) -> Any:
    prefixed = isinstance(values, Mapping) and all(str(name).startswith(_PREFIX) for name in values)
    if not prefixed or any(name in own for name in values):
        return values
    return {name.removeprefix(_PREFIX): value for name, value in values.items()}


def _trained(upload: Raw, names: Collection[str], starts: dict[str, Tensor]) -> set[str]:
    """Return the names whose parameters an upload changes, or starts from elsewhere than the uploads before it.

    Values that it starts from are added to ``starts``.
    """
    if isinstance(upload, Gradient) and isinstance(upload.values, Mapping):
        given = weights("uploads: gradient", {name: upload.values[name] for name in names if name in upload.values})
        return {name for name, value in given.items() if bool(value.any())}
    if not isinstance(upload, Update):
        return set()
    before, after = (
        weights(f"uploads: {side}", {name: state[name] for name in names if name in state})
        for side, state in (("before", upload.before), ("after", upload.after))
    )
    return {
        name
        for name, value in before.items()
        if not torch.equal(value, starts.setdefault(name, value)) or not torch.equal(value, after.get(name, value))
    }


def without_second_derivative(model: nn.Module, images: Tensor) -> str:
    """Return in words why the gradient of a network cannot be matched on images ``(n, c, h, w)``; nothing where it can."""
    device = next(model.parameters()).device
    values = {name: value.detach() for name, value in model.named_parameters()}
    shown, n_logits = images[None].to(device).requires_grad_(), width_of("model", model, images, "logits (n, C)")
    labels = torch.full((1, len(images), n_logits), 1 / n_logits, device=device)
    shape, facts = (images.shape[1], images.shape[2], images.shape[3]), BatchFacts(len(images), 1.0, 1)
    try:
        matching = Matcher(model, shape, facts, device).against([LocalStep(values, values)], [len(images)])
        distance = matching.cosine(shown, labels, torch.arange(1, device=device))
        torch.autograd.grad(distance.sum(), shown)
    except Exception as error:  # a network of somebody else raises anything
        _, found, operation = str(error).partition("derivative for aten::")
        name = operation.split(" ")[0].removesuffix("_backward").strip("_")
        return f"{name} has no second derivative in torch" if found else first_line(error)
    return ""
