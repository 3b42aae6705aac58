"""Files that a reader takes, damaged by chance: bits, cuts, repetitions, pieces of others, and what parsers stumble over."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

BINARY = (
    b"\x00" * 8,
    b"\xff" * 8,
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    (1 << 63).to_bytes(8, "little"),
    (20_000).to_bytes(4, "big") * 2,
    (20_000).to_bytes(4, "little") * 2,
    (1 << 24).to_bytes(4, "little"),
    (8_000_000_000).to_bytes(8, "little"),
)
"""Lengths, sizes and offsets that are no such thing."""

TEXT = (
    *(b"[" * 64, b"]" * 64, b"{" * 64, b"{a=" * 64, b'{"a":' * 600, b"[" * 4000, b"a." * 3000, b'"""', b"'''", b"\\"),
    *(b"0x" + b"f" * 500, b"9" * 5000, b"1e999", b"-inf", b"nan", b"-1", b"1979-05-27T07:32:00Z", b"07:32:00", b"true"),
    *(b"\\u0000", b"\\ud800", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1b[2J", b"\r", b"\n\n[a]\n", b"[[a]]", b"x" * 12_000),
    b"\t" * 300,
    *(b"null", b"NaN", b"Infinity", b'"', b"''", b"=", b",", b":", b"+", b"/", b"../", b"%s", b"{0}", b"#", b"\x00"),
    *(b"=1\n", b"name", b"lr", b"none", b"all", b"[federation]", b"[methods]", b"false", b"0", b"1e-400", b"1_000", b"-0"),
)  # fmt: skip
"""Pieces of TOML, JSON and lists."""


def damaged(content: bytes, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> bytes:
    """Return a content with one to four damages; ``others`` are whole files of the same kind."""
    found = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        draw.choice(DAMAGES)(found, others, draw, pieces)
    return bytes(found)


def _flip(found: bytearray, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> None:
    if found:
        found[draw.randrange(len(found))] ^= 1 << draw.randrange(8)


def _cut(found: bytearray, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> None:
    del found[draw.randint(0, len(found)) :]


def _drop(found: bytearray, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> None:
    at = draw.randint(0, len(found))
    del found[at : at + draw.choice((1, 4, 30))]


def _repeat(found: bytearray, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> None:
    at = draw.randint(0, len(found))
    found[at:at] = bytes(found[at : at + draw.choice((1, 8, 60))]) * draw.choice((1, 2, 40))


def _insert(found: bytearray, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> None:
    at = draw.randint(0, len(found))
    found[at:at] = draw.choice(pieces)


def _overwrite(found: bytearray, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> None:
    """Overwrite near the beginning as often as anywhere: there stand the sizes."""
    piece = draw.choice(pieces)
    at = draw.randint(0, min(len(found), draw.choice((64, 1 << 30))))
    found[at : at + len(piece)] = piece


def _splice(found: bytearray, others: Sequence[bytes], draw: random.Random, pieces: Sequence[bytes]) -> None:
    other = draw.choice(others)
    at, end = sorted((draw.randint(0, len(other)), draw.randint(0, len(other))))
    here = draw.randint(0, len(found))
    found[here : here + draw.choice((0, end - at))] = other[at:end]


DAMAGES: tuple[Callable[[bytearray, Sequence[bytes], random.Random, Sequence[bytes]], None], ...] = (
    *(_flip, _cut, _drop, _repeat, _insert, _insert, _overwrite, _overwrite, _splice),
)
