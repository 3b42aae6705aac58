"""Size of one client's upload in a round, from an attack's ``about.json``: in scalars, numbers of 32 bits, and bytes."""

from __future__ import annotations

from dataclasses import dataclass

from fedpriv.scoring.records import About


@dataclass(frozen=True)
class UploadSize:
    """Size of one client's upload in a round.

    Attributes:
        scalars: everything counted.
        words: numbers of 32 bits. What the field's habit counts is counted by its bits, so that rounding, signs and
            pruning gain what they save; labels, ids and counts are one number each. Without an encoder this is the number
            of scalars.
        bytes: everything counted.
    """

    scalars: float
    words: float
    bytes: float


def upload_size(about: About) -> UploadSize | None:
    """Return the size of one client's upload in a round; None where no run or no communication is known."""
    if about.run is None or about.communication is None:
        return None
    clients = max(1, round(about.run.clients * about.run.participation))
    paper, full = about.communication.paper, about.communication.full
    beside = full.upload_scalars_per_round - paper.upload_scalars_per_round
    return UploadSize(
        scalars=full.upload_scalars_per_round / clients,
        words=(paper.upload_bytes_per_round / 4 + beside) / clients,
        bytes=full.upload_bytes_per_round / clients,
    )
