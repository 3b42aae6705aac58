"""Inversion of vectors that were clipped, pruned or sent in part: believing less of them gives the images back."""

import pytest
import torch
from torch.nn import functional

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.joint import JointInversion
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.attacks.search.objectives import DISTANCES, direction_distance, nonzero_distance, pruned_distance
from fedpriv.defenses.compress import pruned
from fedpriv.defenses.mechanisms import one_block
from fedpriv.defenses.noise import clip_rows
from fedpriv.wire.payloads import Prototypes

CPU = torch.device("cpu")


def test_distances_by_hand():
    found, wanted = torch.tensor([[3.0, 4.0, 1.0]]), torch.tensor([[6.0, 8.0, 0.0]])
    assert nonzero_distance(found, wanted).item() == pytest.approx(25 / 100)
    # The entry that was dropped may be anything up to 6.
    assert pruned_distance(found, wanted).item() == pytest.approx(25 / 100)
    assert pruned_distance(torch.tensor([[6.0, 8.0, -9.0]]), wanted).item() == pytest.approx(9 / 100)
    cosine = (18 + 32) / (26**0.5 * 10)
    assert direction_distance(found, wanted).item() == pytest.approx(2 - 2 * cosine, abs=1e-6)


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_the_vector_itself_is_at_distance_zero_and_others_are_not(name):
    draw = torch.Generator().manual_seed(0)
    clean, other = torch.randn(4, 16, generator=draw), torch.randn(4, 16, generator=draw)
    changed = {
        "vector": clean,
        "direction": clip_rows(clean, 0.5),
        "nonzero": one_block(clean, 4, 1),
        "pruned": pruned(clean, 0.3),
    }[name]
    assert float(DISTANCES[name](clean, changed).max()) < 1e-10
    assert float(DISTANCES[name](other, changed).min()) > 0.05
    assert DISTANCES[name](torch.zeros(4, 16), torch.zeros(4, 16)).isfinite().all()


def shown(changed, images, body, attack):
    knowledge = Knowledge(ThreatModel(), (1, 8, 8), len(images), extractors={0: body})
    held = Prototypes(changed, torch.arange(len(images)), torch.ones(len(images), dtype=torch.int64))
    seen = (Observation(0, 0, (held,), ()),)
    found = attack(seen, knowledge, list_targets(seen, "prototype"), seed=0, device=CPU)
    one = found.images[:, 0].detach()
    return float((one - images).square().mean()), float((one.roll(1, 0) - images).square().mean())


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("direction", lambda rows: clip_rows(rows, 0.1)),
        ("pruned", lambda rows: pruned(rows, 0.5)),
        ("nonzero", lambda rows: one_block(rows, 2, 1)),
    ],
)
@pytest.mark.parametrize("kind", [DipInversion, PixelInversion, JointInversion])
def test_positive_control_what_a_defense_hides_from_one_comparison_another_sees(kind, match, change):
    """Through a linear extractor with an offset, as wide as twice the image."""
    draw = torch.Generator().manual_seed(3)
    images = functional.interpolate(torch.rand(4, 1, 4, 4, generator=draw), scale_factor=2, mode="bilinear")
    matrix, offset = torch.randn(64, 128, generator=draw) / 8, torch.randn(128, generator=draw)

    def body(batch):
        return (batch - 0.5).flatten(1) @ matrix + 0.3 * offset

    fooled, _ = shown(change(body(images)), images, body, kind(iterations=120))
    adapted, shuffled = shown(change(body(images)), images, body, kind(iterations=120, match=match))
    assert adapted < 0.5 * fooled
    assert shuffled > 2 * adapted
