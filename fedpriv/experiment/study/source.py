"""Where a study's settings were written, so that whatever is wrong with one is said with its key and line."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpriv.experiment.study.toml_lines import Path as Keys
from fedpriv.experiment.study.toml_lines import line_numbers
from fedpriv.util.errors import UserError

ALIASES = {"learning_rate": "lr", "max_steps": "local_steps", "partition.name": "partition"}
"""Fields of a run's configuration whose flags have other names."""

SPOKEN = {"public": "public images", "per_class": "images per class"}
"""What messages call a setting where it is not its name with spaces."""

_POINTED = r"(--{0}\b|['.]{0}['.]|\b{0}(: |=|\.[a-z0-9]))"
_SAID = r"(\b{0} (is\b|-?\d)|\b\d+ {0}\b)"


class PlacedError(UserError):
    """An error whose message already says where."""


@dataclass(frozen=True)
class Source:
    """A study as it was written: a file, flags, or flags over a file.

    Attributes:
        values: nested dictionaries and lists, keys as they were written.
        file: the file, or None.
        lines: the line of every key of the file.
        flags: keys from the top that flags set, with the name of the flag.
    """

    values: Mapping[str, Any]
    file: Path | None = None
    lines: Mapping[Keys, int] = field(default_factory=dict)
    flags: Mapping[Keys, str] = field(default_factory=dict)

    def place(self, keys: Keys) -> str:
        """Return where a setting stands: ``study.toml:12: methods[2].lr``, or a flag."""
        prefixes = [keys[:end] for end in range(len(keys), 0, -1)]
        flag = next((self.flags[prefix] for prefix in prefixes if prefix in self.flags), None)
        if flag is not None:
            return flag
        if self.file is None:
            return f"study: {dotted(keys)}"
        written = next((prefix for prefix in prefixes if prefix in self.lines), None)
        return f"{self.file}:{self.lines[written]}: {dotted(written)}" if written else f"{self.file}: {dotted(keys)}"

    def error(self, keys: Keys, message: str) -> PlacedError:
        """Return the error that says what is wrong with a setting, and where it stands."""
        return PlacedError(f"{self.place(keys)}: {message}")

    @contextlib.contextmanager
    def at(self, *places: Keys) -> Iterator[None]:
        """Say of any :class:`UserError` in the block that it is about a setting, or about an entry of it that it names.

        Args:
            places: settings that it may be about; the first is meant where the message names an entry of none.

        Raises:
            PlacedError: in place of a UserError.
        """
        try:
            yield
        except PlacedError:
            raise
        except UserError as error:
            message = str(error)
            named = next((found for keys in places if (found := self._named(keys, message)) != keys), places[0])
            raise self.error(named, message) from error

    def _named(self, keys: Keys, message: str) -> Keys:
        """Return the entry of a table that a message points at, or the table where it points at none."""
        value: Any = self.values
        for key in keys:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError):
                return keys
        if not isinstance(value, Mapping):
            return keys
        names = {key: {key.lower(), key.lower().replace("-", "_")} for key in value if key != "name"}
        for own in names.values():
            own |= {long for long, short in ALIASES.items() if short in own} | {n.replace("_", "-") for n in own}
        # A setting that is pointed at (--lr, 'lr', lr:) before one that is spoken of (alpha is -1), or whose value is.
        pointed = [k for k, own in names.items() if any(re.search(_POINTED.format(re.escape(n)), message) for n in own)]
        said = [key for key in names if re.search(_SAID.format(_spoken(key)), message)]
        quoted = [key for key in names if isinstance(value[key], str) and _quoted(key, value[key], message)]
        named = pointed or said or quoted
        return self._named((*keys, named[0]), message) if named else keys


def _spoken(key: str) -> str:
    name = key.lower().replace("-", "_")
    return SPOKEN.get(name, name.replace("_", " "))


def _quoted(key: str, value: str, message: str) -> bool:
    if key.replace("-", "_") == "data_dir":
        return str(Path(value).expanduser().resolve()) in message
    return repr(value) in message


def dotted(keys: Keys) -> str:
    """Return keys as a person writes them: ``methods[2].lr``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".")


def read_source(path: Path) -> Source:
    """Read a study's file.

    Raises:
        UserError: when it is missing or not TOML; the message gives line and column.
    """
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file; expected a study in TOML, see docs/audit.md") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: not readable as TOML ({error})") from error
    return Source(values, path, line_numbers(text))


def overridden(
    source: Source, settings: Mapping[str, tuple[str, Any]], federation: Mapping[str, tuple[str, Any]]
) -> Source:
    """Return a source in which flags take the place of what a file says.

    Args:
        source: the file, or an empty one.
        settings: key at the top -> (flag, value).
        federation: key of the table ``federation`` -> (flag, value).
    """
    values = {key: value for key, value in source.values.items() if key.replace("-", "_") not in settings}
    values |= {key: value for key, (_, value) in settings.items()}
    flags: dict[Keys, str] = {(key,): flag for key, (flag, _) in settings.items()}
    if federation:
        before = source.values.get("federation", {})
        if not isinstance(before, Mapping):
            raise source.error(("federation",), "expected a table")
        kept = {key: value for key, value in before.items() if key.replace("-", "_") not in federation}
        values["federation"] = kept | {key: value for key, (_, value) in federation.items()}
        flags |= {("federation", key): flag for key, (flag, _) in federation.items()}
    return Source(values, source.file, source.lines, flags)
