"""The places where a study was written, so that whatever is wrong with it is said with the path of its key."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.util.errors import UserError

Keys = tuple[str | int, ...]
"""Keys and positions from the top of a study: ``("methods", 2, "lr")``."""


class PlacedError(UserError):
    """An error whose message already says where."""


@dataclass(frozen=True)
class Origin:
    """A study as it was written: a file, a mapping, flags, or flags over a file.

    Attributes:
        values: nested dictionaries and lists.
        file: the file, or None.
        flags: keys from the top that flags set, with the name of the flag.
        moved: keys of entries that an axis sets -> where the axis stands.
    """

    values: Mapping[str, Any]
    file: Path | None = None
    flags: Mapping[Keys, str] = field(default_factory=dict)
    moved: dict[Keys, Keys] = field(default_factory=dict)

    def place(self, keys: Keys) -> str:
        """Return the place of a setting: ``study.toml: methods[2].lr``, or ``--methods[2].lr``."""
        prefixes = [keys[:end] for end in range(len(keys), 0, -1)]
        moved = next((prefix for prefix in prefixes if prefix in self.moved), None)
        if moved is not None:
            keys = (*self.moved[moved], *keys[len(moved) :])
            prefixes = [keys[:end] for end in range(len(keys), 0, -1)]
        written = self._as_written(keys)
        flag = next((prefix for prefix in prefixes if prefix in self.flags), None)
        if flag is not None:
            return self.flags[flag] + dotted(("", *written[len(flag) :]))
        return f"{self.file or 'study'}: {dotted(written)}"

    def error(self, keys: Keys, message: str) -> PlacedError:
        """Return the error that says what is wrong with a setting, and where it stands."""
        return PlacedError(f"{self.place(keys)}: {message}", keys=keys)

    @contextlib.contextmanager
    def at(self, keys: Keys, where: Callable[[Keys], Keys] | None = None) -> Iterator[None]:
        """Say of any :class:`UserError` in the block where the setting stands that it is about.

        Args:
            keys: where, if the error names no setting; else what it names is below.
            where: from the keys that an error names to where they stand, if that is not below ``keys``.

        Raises:
            PlacedError: in place of a UserError.
        """
        try:
            yield
        except PlacedError:
            raise
        except UserError as error:
            named = where(error.keys) if where and error.keys else (*keys, *error.keys)
            raise self.error(named, str(error)) from error

    def _as_written(self, keys: Keys) -> Keys:
        """Return keys in the spelling of the user: dashes, and no position in what was not written as a list."""
        found: list[str | int] = []
        value: Any = self.values
        for key in keys:
            if isinstance(key, int):
                if isinstance(value, list):
                    found.append(key)
                    value = value[key] if key < len(value) else None
                continue
            if isinstance(value, str) and key == "name":
                continue  # one word, which is the name
            if isinstance(value, Mapping) and key not in value:
                key = next((name for name in value if str(name).replace("-", "_") == key), key)
            found.append(key)
            value = value.get(key) if isinstance(value, Mapping) else None
        return tuple(found)


def dotted(keys: Keys) -> str:
    """Return keys as a person writes them: ``methods[2].lr``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
