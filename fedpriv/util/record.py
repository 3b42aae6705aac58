"""The base of everything that is written as JSON and read again: frozen, and closed to unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError


class Record(BaseModel):
    """A record or a part of one. Numbers in it are finite wherever they are measured."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants", defer_build=True)


def first_fault(error: ValidationError, skip: int = 0) -> str:
    """Return the first thing that is wrong, by its dotted name; ``skip`` leaves out so many steps of it."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(step) for step in first["loc"][skip:])
    if first["type"] == "missing":
        return f"field {name!r} is missing"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"field {name!r} is unknown"
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"field {name!r}: {message}" if name else message
