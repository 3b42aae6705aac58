"""What noise guarantees: accounting against a second library, sensitivities by hand and by search."""

import pytest
import torch
from defense_cases import CASES, LABELS, C, D, build, plan_for, send
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.algebra.entanglement import entangle, sample_weights
from fedpriv.defenses.accounting import epsilon
from fedpriv.federation.defense import DefensePipeline
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Entangled, Prototypes

# ---------------------------------------------------------------- differential privacy


def deviations(text, kind, message=None, **changes):
    clear = message or CASES[kind][0]
    made = build(text)
    found = [send(made, kind, message=clear, seed=seed, **changes)[0] for seed in range(300)]
    name = {"prototype": "features", "representation": "features", "entangled": "feature", "model": "state/weight"}[
        kind
    ]
    return torch.stack([payload.tensors()[name] for payload in found]).std(0)


def test_sensitivities_by_hand():
    """Standard deviation over sensitivity is the noise multiplier, of every kind: 2 S, 2 S / n_c, w_c 2 S / n_c."""
    z, bound = 3.0, 0.5
    head = f"dp-noise:noise_multiplier={z},bound={bound},unit=image"
    whole = z * 2 * bound

    def near(found, wanted):
        assert float(found.square().mean().sqrt()) == pytest.approx(wanted, rel=0.05)

    near(deviations(f"{head},counts=public", "representation"), whole)
    public = deviations(f"{head},counts=public", "prototype")
    for row, n_c in zip(public, (6, 2, 1), strict=True):
        near(row, whole / n_c)
    for row in deviations(f"{head},floor=2", "prototype"):
        near(row, whole / 2)
    near(deviations(f"{head},counts=public", "entangled"), whole * max(0.5 / 6, 0.3 / 2, 0.2 / 1))
    near(deviations(f"dp-noise:noise_multiplier={z},bound={bound}", "model"), whole)
    near(deviations(f"dp-noise:noise_multiplier={z},bound={bound}", "prototype"), whole)


@given(st.integers(0, 10**6), st.sampled_from(["RSP", "VAR", "VAP", "RAP"]))
def test_no_replaced_image_moves_an_upload_by_more_than_its_sensitivity(seed, mechanism):
    generator = torch.Generator().manual_seed(seed)
    bound = 0.7
    defense = build(f"dp-noise:noise_multiplier=1,bound={bound},unit=image,counts=public")[0]
    features = torch.randn(9, D, generator=generator)
    features = bound * features / features.norm(dim=1, keepdim=True)
    other = features.clone()
    place = int(torch.randint(9, (1,), generator=generator))
    other[place] = -features[place]
    counts = torch.bincount(LABELS, minlength=C)
    weights = sample_weights(LABELS, mechanism, generator)
    mixed = [Entangled(*entangle(rows, LABELS, weights, C)) for rows in (features, other)]
    moved = float((mixed[0].feature - mixed[1].feature).norm())
    assert moved <= float(defense.sensitivity(mixed[0], counts)) * (1 + 1e-5)
    means = [torch.stack([rows[c == LABELS].mean(0) for c in (0, 2, 3)]) for rows in (features, other)]
    allowed = defense.sensitivity(Prototypes(means[0], torch.tensor([0, 2, 3])), counts).squeeze(1)
    assert bool(((means[0] - means[1]).norm(dim=1) <= allowed * (1 + 1e-5)).all())


def test_dp_noise_is_refused_behind_what_hides_how_much_an_image_can_move():
    private = "dp-noise:epsilon=8,unit=image,bound=5"
    for text, kind, words in (
        ("hide-labels", "entangled", "defense 'dp-noise' behind 'hide-labels': .* give dp-noise first"),
        ("hide-labels", "entangled", "defense 'dp-noise' behind 'hide-labels': .* give dp-noise first"),
        ("noise:scale=3", "prototype", "defense 'dp-noise' with unit=image behind 'noise': .* give dp-noise first"),
        ("dp-noise:epsilon=8", "prototype", "behind 'dp-noise': .* or unit=client"),
    ):
        with pytest.raises(UserError, match=words):
            DefensePipeline(build(text, private)).check(plan_for(kind))
        DefensePipeline(build(private, text)).check(plan_for(kind))
        DefensePipeline(build(text, "dp-noise:epsilon=8")).check(plan_for(kind))
    for text in (
        "clip:bound=0.1",
        "noise:unit=absolute",
        "count-floor:least=2",
        "entangle",
        "upload-interval:k=2",
        private,
    ):
        DefensePipeline(build(text, private)).check(plan_for("prototype"))


def test_without_opacus_one_line_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    epsilon.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'fedpriv\[dp\]'"):
        DefensePipeline(build("dp-noise:noise_multiplier=1.2345")).check(plan_for("prototype"))
    epsilon.cache_clear()
