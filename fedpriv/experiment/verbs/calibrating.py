"""The verb ``calibrate``: how often an attack would be said to find a leak where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from fedpriv.calibration.own import RAW, Calibration, calibrate_drawn
from fedpriv.calibration.rates import counted
from fedpriv.experiment.calibrated import Ground, claims_of_page, nulls_of
from fedpriv.experiment.federation_settings import FederationSettings, refuse_unknown
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.verbs.attacking import Grants
from fedpriv.methods import default_method
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.listener import SILENT, Listener
from fedpriv.util.pairs import mapping
from fedpriv.util.seeds import derive_seed

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Attack
    from fedpriv.attacks.inference.base import Inference
    from fedpriv.calibration.world import Kind

DRAWN = ("representation", "prototype")
"""Kinds of upload that are drawn in a moment, where nothing is asked of the federation."""

_OWN = ("dataset", "data_dir", "per_class", "image_size")


class CalibrationSettings(FederationSettings, total=False):
    """The settings of the federations of a calibration, beside their images, which are drawn.

    Attributes:
        method: which trains them (default: the one that ``fedpriv attack`` would take for this kind of upload).
        knowledge: changes to the knowledge card, as of :func:`fedpriv.attack`.
        clients: of each federation, at least five, since fewer support no claim (default 8).
    """

    method: str
    knowledge: Grants


@imports_what_is_named
def calibrate(
    attack: Attack | Inference | str,
    *,
    kind: str = "representation",
    pages: int = 40,
    targets: int = 2,
    seed: int = 0,
    listener: Listener = SILENT,
    **settings: Unpack[CalibrationSettings],
) -> Calibration:
    """Run an attack on small federations whose truth is known, and count what a page says of it.

    Every page holds one attack and its control on permuted uploads. Raw representations and prototypes are drawn: images of
    6 x 6 pixels, every second time with a look of each client's own. Nulls: uploads of the same mean and covariance as
    representations of the class, another client's, another data set's, and the class alone.

    Other kinds of upload, and these where more than the number of clients is set, are of federations that are trained on
    drawn images of 12 x 12 pixels. Nulls: the private images are exchanged for others of the same classes, or of another
    data set, while the server sees what it saw; of questions about classes the division is. A claim on a null is false.

    Args:
        attack: an attack or inference with its options, or a name, ``package.module:NAME`` too, for one without any.
        kind: of upload: ``fedpriv list targets``.
        pages: federations for each null.
        targets: of each client, of an attack that returns images; 1 to 4.
        seed: of everything drawn.
        listener: hears of the progress.
        settings: see :class:`CalibrationSettings`.

    Returns:
        Rates with their intervals; printed, a table.

    Raises:
        UserError: when the attack is not on this kind of upload, or a number or setting does not fit.
    """
    from fedpriv.attacks import ATTACKS

    own = _checked(settings)
    made: Any = ATTACKS.load(attack)() if isinstance(attack, str) else attack
    if kind not in made.targets:
        raise UserError(f"kind: {made.name!r} is not on {kind} uploads; expected {', '.join(sorted(made.targets))}")
    clients = own.pop("clients", 8)
    _refuse_numbers(pages, clients, targets)
    if kind in DRAWN and not own:
        drawn: Kind = "prototype" if kind == "prototype" else "representation"
        return calibrate_drawn(made, kind=drawn, pages=pages, clients=clients, targets=targets, seed=seed)
    method = own.pop("method", None) or default_method(kind)
    if method is None:
        raise UserError(f"{argument('kind', kind)}: no method here uploads this; pass {argument('method')}")
    ground = Ground(made, kind, method, clients, targets, mapping("knowledge", own.pop("knowledge", {})), own)
    with listener.progress(f"{made.name} on {kind}") as report:
        found = []
        for page in range(pages):
            report(page, pages, "federations")
            found.append(claims_of_page(ground, derive_seed(seed, "trained", page)))
    false = {null: counted(one[null] for one in found) for null in nulls_of(made)}
    return Calibration(made.name, kind, false, counted(one[RAW] for one in found))


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, once each is one that can be set.

    Raises:
        UserError: for the first that is not.
    """
    refuse_unknown(settings, CalibrationSettings.__annotations__)
    for name in _OWN:
        if name in settings:
            raise UserError(f"{argument(name, settings[name])}: calibration draws the images of its own federations")
    return dict(settings)


def _refuse_numbers(pages: Any, clients: Any, targets: Any) -> None:
    """Check that numbers are whole, and in range.

    Raises:
        UserError: when one is not.
    """
    whole = all(type(number) is int for number in (pages, clients, targets))
    if not whole or pages < 1 or clients < 5 or not 1 <= targets <= 4:
        raise UserError(
            f"pages {pages}, clients {clients}, targets {targets}: expected at least 1, at least 5, and from 1 to 4"
        )
