"""Registries: plain dictionaries from a name to a dotted target, imported only when asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from fedpriv.util.errors import unknown_name


def resolve(kind: str, name: str, table: Mapping[str, str]) -> Any:
    """Return the object that ``table[name]`` points to, written as ``package.module:attribute``.

    Args:
        kind: what the table holds ("method", "attack", ...), for the error message.
        name: the name to look up.
        table: names to dotted targets.

    Raises:
        UserError: when the name is unknown; the message lists the known ones.
    """
    if name not in table:
        raise unknown_name(kind, name, table)
    module, _, attribute = table[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
