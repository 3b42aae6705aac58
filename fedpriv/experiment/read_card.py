"""The knowledge card that the arguments of a verb describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedpriv.util.errors import UserError, shown
from fedpriv.util.pairs import mapping

if TYPE_CHECKING:
    from fedpriv.attacks.observation import ThreatModel


def parse_card(given: Mapping[str, Any] | Sequence[str], *, images_aside: bool = True) -> ThreatModel:
    """Return the knowledge card that grants describe; the number of rounds is each attack's own.

    Args:
        given: values by grant, a mapping or texts ``GRANT=VALUE``.
        images_aside: whether images of the clients' domain were set aside, which the attacker is granted by default.

    Raises:
        UserError: for an unknown grant or value.
    """
    from fedpriv.attacks.observation import ThreatModel
    from fedpriv.sources.auxiliary import parse_foreign
    from fedpriv.util.config import parse

    values = mapping("knowledge", given)
    if images_aside and "foreign" not in values:
        values = {"attacker_data": "same_domain"} | values
    batch = values.get("batch", "known")
    if batch not in ("known", "none"):
        raise UserError(f"{_granting(batch=batch)}: expected known or none")
    if "rounds_seen" in values:
        raise UserError("knowledge rounds_seen: use rounds_seen")
    card = parse(ThreatModel, values | {"batch": batch == "known"}, "knowledge")
    if card.extractor == "shadow" and card.attacker_data != "same_domain":
        raise UserError(
            f"{_granting(extractor='shadow')}: a shadow extractor is trained on the attacker's own images with their "
            f"classes; pass {_granting(attacker_data='same_domain')}"
        )
    if bool(card.foreign) != (card.attacker_data == "other_domain"):
        raise UserError(
            f"knowledge attacker_data={card.attacker_data}, foreign={card.foreign or '(nothing)'}: images of "
            "another domain take both attacker_data=other_domain and foreign=NAME or NAME:FOLDER of a data set"
        )
    if card.foreign:
        try:
            parse_foreign(card.foreign)
        except UserError as error:
            raise UserError(f"{_granting(foreign=card.foreign)}: {error}") from error
    return card


def _granting(**grants: str) -> str:
    return f"knowledge={shown(grants)}"
