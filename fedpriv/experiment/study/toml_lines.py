"""The line on which every key and element of a TOML document stands, which ``tomllib`` does not tell.

Only for documents that ``tomllib`` has accepted: the scanner finds places, it does not check the language.
"""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]
"""Keys and positions from the top of the document, for example ``("methods", 2, "lr")``."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN_VALUE = re.compile(r"[^,\]}\n#]+")
_QUOTES = ('"""', "'''", '"', "'")


def line_numbers(text: str) -> dict[Path, int]:
    r"""Return the line, from 1, of every key, table and element of a valid TOML document.

    >>> line_numbers('a = [1,\n 2]\n[b]\nc.d = 3')[("a", 1)]
    2
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.lines: dict[Path, int] = {}
        self.lengths: dict[Path, int] = {}
        """Tables met so far of each array of tables."""

    def scan(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip_blank():
            if self.text.startswith("[[", self.at):
                table = self._header(2, array=True)
            elif self.text[self.at] == "[":
                table = self._header(1, array=False)
            else:
                self._pair(table)
        return self.lines

    def _note(self, path: Path) -> None:
        self.lines.setdefault(path, self.text.count("\n", 0, self.at) + 1)

    def _header(self, brackets: int, *, array: bool) -> Path:
        self.at += brackets
        table: Path = ()
        keys = self._key()
        for place, key in enumerate(keys):
            table = (*table, key)
            self._note(table)
            last = place == len(keys) - 1
            if array and last:
                self.lengths[table] = self.lengths.get(table, 0) + 1
            if table in self.lengths:  # names under an array of tables belong to its newest table
                table = (*table, self.lengths[table] - 1)
                self._note(table)
        self._skip_blank(newlines=False)
        self.at += brackets
        return table

    def _pair(self, table: Path) -> None:
        begin = self.at
        keys = self._key()
        end, self.at = self.at, begin
        for place in range(len(keys)):
            self._note((*table, *keys[: place + 1]))
        self.at = end
        self._skip_blank(newlines=False)
        self.at += 1  # the equals sign
        self._skip_blank(newlines=False)
        self._value((*table, *keys))

    def _key(self) -> list[str]:
        """Return the parts of a dotted key."""
        parts: list[str] = []
        while True:
            self._skip_blank(newlines=False)
            if self.text[self.at] in "\"'":
                literal = self._string()
                parts.append(str(tomllib.loads(f"v = {literal}")["v"]))
            else:
                found = _BARE.match(self.text, self.at)
                assert found is not None
                parts.append(found.group())
                self.at = found.end()
            self._skip_blank(newlines=False)
            if self.text[self.at] != ".":
                return parts
            self.at += 1

    def _value(self, path: Path) -> None:
        first = self.text[self.at]
        if first == "[":
            self.at += 1
            place = 0
            while self._skip_blank() and self.text[self.at] != "]":
                self._note((*path, place))
                self._value((*path, place))
                place += 1
                self._comma()
            self.at += 1
        elif first == "{":
            self.at += 1
            while self._skip_blank() and self.text[self.at] != "}":
                self._pair(path)
                self._comma()
            self.at += 1
        elif first in "\"'":
            self._string()
        else:
            found = _PLAIN_VALUE.match(self.text, self.at)
            assert found is not None
            self.at = found.end()

    def _comma(self) -> None:
        if self._skip_blank() and self.text[self.at] == ",":
            self.at += 1

    def _string(self) -> str:
        """Step over a string and return it with its quotes."""
        begin = self.at
        quote = next(mark for mark in _QUOTES if self.text.startswith(mark, begin))
        self.at += len(quote)
        while not self.text.startswith(quote, self.at):
            self.at += 2 if quote[0] == '"' and self.text[self.at] == "\\" else 1
        self.at += len(quote)
        while len(quote) == 3 and self.text.startswith(quote[0], self.at):  # a quote before the closing three
            self.at += 1
        return self.text[begin : self.at]

    def _skip_blank(self, *, newlines: bool = True) -> bool:
        """Step over blanks, and with ``newlines`` over line ends and comments; return whether anything is left."""
        while self.at < len(self.text):
            if self.text[self.at] in (" \t\n" if newlines else " \t"):
                self.at += 1
            elif newlines and self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False
