"""What an attack of another package has to say of itself."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import fields, is_dataclass
from inspect import isabstract
from typing import get_args

from fedpriv.attacks.contract import Declared
from fedpriv.attacks.observation import Needs, Unit
from fedpriv.util.errors import UserError


def refuse_no_attack(name: str, found: object) -> None:
    """Check what another package calls an attack.

    Raises:
        UserError: naming what it does not say, or says wrongly.
    """
    if not (isinstance(found, type) and issubclass(found, Declared) and is_dataclass(found)):
        raise UserError(f"expected a dataclass that inherits from fedpriv.attacks.contract.Attack, got {found!r}")
    own = f"class {found.__name__}"
    said = ("name", "summary", "targets", *(("unit",) if found.result == "images" else ()))
    missing = [what for what in said if not hasattr(found, what)] + (["run"] if isabstract(found) else [])
    if missing:
        raise UserError(f"{own} has no {' and no '.join(missing)}; see fedpriv.attacks.contract.Attack")
    targets, needs, unit, budget = (getattr(found, what, None) for what in ("targets", "needs", "unit", "budget"))
    if isinstance(targets, str) or not (isinstance(targets, Container) and isinstance(targets, Iterable)):
        raise UserError(f"{own}: targets: expected kinds of payload, got {targets!r}")
    if not isinstance(needs, Needs):
        raise UserError(f"{own}: needs: expected a fedpriv.attacks.observation.Needs, got {needs!r}")
    if found.result == "images" and unit not in get_args(Unit):
        raise UserError(f"{own}: unit: expected one of {', '.join(get_args(Unit))}, got {unit!r}")
    if budget is not None and budget not in [spec.name for spec in fields(found)]:
        raise UserError(f"{own}: budget: expected the name of one of its options, or None, got {budget!r}")
