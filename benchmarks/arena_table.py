"""Who wins which row of the arena, from the lines that it wrote.

python benchmarks/arena_table.py ARENA/cases.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpriv.eval.intervals import clustered

HEADER = (
    "| images | row | targets | evaluations | fedpriv | strongest peer | ahead at equal evaluations [95 %] | | "
    "ahead at equal CPU seconds [95 %] | |"
)
LINE = "| --- | --- | ---: | ---: | ---: | --- | ---: | --- | ---: | --- |"
Case = dict[str, Any]


def table(cases: Sequence[Case], our: str, equal_seconds: str) -> str:
    """Return a row for each kind of images, row of the arena and share of its budget, in the order of their first attacks.

    A target is one independent case. The peer is the one with the highest mean of the row, which favours peers.
    """
    kinds = dict.fromkeys(map(_kind, cases))
    by_kind = ([one for one in cases if _kind(one) == kind] for kind in kinds)
    lines = [_line(own, our, equal_seconds) for own in map(_whole, by_kind) if len({one["side"] for one in own}) > 1]
    return "\n".join((HEADER, LINE, *lines))


def _kind(case: Case) -> tuple[str, str, float]:
    return case["images"], case["row"], case["share"]


def _whole(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of the blocks that every side of the row has attacked: the others are still under way."""
    blocks = [
        {(one["seed"], one["block"]) for one in cases if one["side"] == side} for side in {c["side"] for c in cases}
    ]
    return [one for one in cases if all((one["seed"], one["block"]) in own for own in blocks)]


def _line(cases: Sequence[Case], our: str, equal_seconds: str) -> str:
    scores = {side: _scores(cases, side) for side in dict.fromkeys(case["side"] for case in cases)}
    mine, peers = scores[our], {side: own for side, own in scores.items() if side not in (our, equal_seconds)}
    best = max(peers, key=lambda side: float(peers[side].mean()))
    columns = [_ahead(mine - peers[best])]
    columns.append(_ahead(scores[equal_seconds] - peers[best]) if equal_seconds in scores else ("–", "–"))
    spent = {
        side: round(float(np.mean([one["evaluations"] for one in cases if one["side"] == side])))
        for side in (our, best)
    }
    told = " | ".join(cell for pair in columns for cell in pair)
    images, row, share = _kind(cases[0])
    kind = f"{images}{', whole budget' if share == 1 else ''} | {row}"
    return (
        f"| {kind} | {len(mine)} | {spent[our]:,} and {spent[best]:,} | {mine.mean():.1f} dB | "
        f"{best}: {peers[best].mean():.1f} dB | {told} |"
    )


def _scores(cases: Sequence[Case], side: str) -> np.ndarray:
    own = sorted((one for one in cases if one["side"] == side), key=lambda one: (one["seed"], one["block"]))
    return np.array([score for one in own for score in one["psnr"]])


def _ahead(differences: np.ndarray) -> tuple[str, str]:
    """Return the mean difference with its interval, and who wins."""
    limits = clustered(differences, range(len(differences))).interval()
    if limits is None:
        return f"{differences.mean():+.1f} dB", "one target cannot tell"
    low, high = limits
    word = "fedpriv" if low > 0 else "the peer" if high < 0 else "cannot tell"
    return f"{differences.mean():+.1f} [{low:+.1f}, {high:+.1f}] dB", word


if __name__ == "__main__":
    found = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text(encoding="utf-8").splitlines()]
    print(table(found, "fedpriv", "fedpriv, equal seconds"))
