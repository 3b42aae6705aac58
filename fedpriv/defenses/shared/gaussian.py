"""An upload clipped as a whole, under Gaussian noise on every entry: the mechanism of several defenses."""

from __future__ import annotations

from torch import Tensor

from fedpriv.defenses.noise import standard_noise
from fedpriv.defenses.shared.signals import changed, norm, signal
from fedpriv.federation.defense import UploadContext
from fedpriv.wire.payload import Message


def clipped_and_noisy(message: Message, context: UploadContext, bound: float, deviation: float) -> Message:
    """Return a message whose signals together are no longer than ``bound``, with noise on every entry.

    Args:
        message: the upload; of networks the signal is the difference from the broadcast.
        context: of the upload; gives the broadcast and the draws.
        bound: largest L2 norm of all signals of the message together, > 0.
        deviation: standard deviation of the noise, >= 0, in the units of the signals.
    """
    signals = [signal(payload, context.broadcast) for payload in message]
    length = norm({f"{place}.{name}": value for place, own in enumerate(signals) for name, value in own.items()})
    share = min(1.0, bound / max(length, 1e-12))

    def change(_: str, value: Tensor) -> Tensor:
        return value * share + deviation * standard_noise(value, "gaussian", context.rng)

    return tuple(changed(payload, context.broadcast, change) for payload in message)
