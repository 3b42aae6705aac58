"""What a client sends under a defense, in scalars: what is encoded counts by its bits."""

import pytest
from eval_cases import ABOUT, but
from frontier_cases import QUANTISED, page, upload
from looped import each

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import DefensePipeline
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.summary import Communication, Total, Traffic
from fedpriv.reports.labels import upload_size
from fedpriv.uploads.ledger import Entry, count
from fedpriv.util.config import plain


def sent(choices, shape=(10, 64), clients=2):
    """What an attack's directory says of a round in which clients send one prototype matrix with its ids each."""
    matrix = Entry(1, 0, "upload", "prototype.features", shape, "float32", 4, in_paper_count=True)
    ids = Entry(1, 0, "upload", "prototype.classes", shape[:1], "int64", 8, in_paper_count=False)
    pipeline = DefensePipeline(build_defenses([parse_choice(choice) for choice in choices]))
    wire = [row for _ in range(clients) for row in pipeline.wire_entries([matrix, ids])]
    totals = count(wire)
    per_round = {kind: {f"{key}_per_round": value for key, value in plain(one).items()} for kind, one in totals.items()}
    return upload_size(
        but(
            ABOUT,
            run=RunConfig(clients=clients),
            communication=Communication(
                **{kind: Traffic(**own, total=Total(**plain(totals[kind]))) for kind, own in per_round.items()}
            ),
        )
    )


def test_what_is_not_encoded_counts_as_scalars():
    assert sent([])[1] == sent([])[0] == 640 + 10


@each(
    "choice, words",
    [
        ("quantise:bits=4", 640 * 4 / 32 + 1 + 10),  # one scale, ten ids
        ("quantise:bits=2", 640 * 2 / 32 + 1 + 10),
        ("prune:keep=0.1", 64 + 640 / 32 + 10),  # 64 values, and a bit for each of 640 places
    ],
)
def test_encoders_count_by_their_bits(choice, words):
    size = sent([choice])
    assert size[1] == words < sent([])[0]
    assert size[2] == 4 * (words - 10) + 8 * 10


def test_an_encoder_can_win():
    # As the encoder sends them: as many entries and eight scales, in four bits each.
    (found,) = page(
        upload(method="fedavg", scalars=22603), upload(method="fedavg", scalars=22611, bits=4, defenses=QUANTISED)
    )
    first = next(p for p in found.points if p.defense != "none")
    assert (first.scalars.mean, first.bytes.mean) == (pytest.approx(22611 / 8), pytest.approx(22611 / 2))
