"""All rounds: extractors complete each other, noise averages out while they move, and auxiliary images give nothing."""

from dataclasses import replace

import pytest
import torch
from compare import expect_same
from defense_cases import build
from federations import small, trained_small

from fedpriv.attacks.features.base import AllRoundsInversion
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.sources.case import build_case
from fedpriv.sources.rehearsal import rehearsed
from fedpriv.sources.run import RunSource
from fedpriv.uploads.payloads import Prototypes, Representations
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

ROUNDS = 6
CARD = ThreatModel(attacker_data="same_domain", rounds_seen=ROUNDS)


def extractor(round_, width=24, client=0):
    """A narrow extractor, another one each round: it forgets most of an image."""
    matrix = torch.randn(64, width, generator=generator(0, "extractor", round_, client)) / 8
    return lambda images: torch.relu((images.flatten(1) - 0.3) @ matrix + 0.5)


def federation(images, labels, *texts, rounds=ROUNDS, kind="representation", own=None, client=0):
    """What a server sees of one client, and what it knows of it."""
    pipeline, seen, defended = DefensePipeline(build(*texts)), [], {}
    extractors = {t: extractor(t, client=client) for t in range(1, rounds + 1)}
    for t, one in extractors.items():
        rows = one(images)
        held = Representations(rows, labels) if kind == "representation" else Prototypes(rows, torch.arange(len(rows)))
        upload = pipeline.upload((held,), Sender(t, 0, 10, labels, (), rounds), 0)
        seen.append(Observation(t, 0, upload, ()))
        if texts:
            defended[t, 0] = rehearsed(pipeline, seen[-1], kind, 10, rounds)
    known = Knowledge(
        CARD if own is not None else replace(CARD, attacker_data="none"),
        (1, 8, 8),
        10,
        extractors={0: extractors[rounds]},
        earlier={(t, 0): one for t, one in extractors.items() if t < rounds},
        defended=defended,
        public_images=own,
    )
    return tuple(seen), known


def psnr(found, images):
    return -10 * (found.images[:, 0] - images).square().flatten(1).mean(1).log10()


def targets_of(seen, kind="representation"):
    return list_targets(seen[-1:], kind)


def test_positive_control_rounds_complete_each_other(digits):
    images, labels = digits[0][1000:1012], digits[1][1000:1012]
    seen, known = federation(images, labels, own=digits[0][:400])
    targets = targets_of(seen)
    together = AllRoundsInversion()(seen, known, targets)
    newest = DecoderInversion()(seen, known, targets)
    assert psnr(together, images).mean() > psnr(newest, images).mean() + 4
    expect_same(together.features, seen[-1].upload[0].features)
    assert [one.index for one in together.targets] == list(range(12))


def test_negative_control_other_images_in_the_same_place_give_nothing(digits):
    images, labels = digits[0][1000:1012], digits[1][1000:1012]
    seen, known = federation(images.roll(5, 0), labels, own=digits[0][:400])
    found = AllRoundsInversion()(seen, known, targets_of(seen))
    floor = psnr(replace(found, images=digits[0][:400].mean(0).expand_as(found.images)), images)
    assert psnr(found, images).mean() < floor.mean()
    assert psnr(found, images.roll(5, 0)).mean() > floor.mean() + 4


def test_noise_averages_out_though_extractors_have_nothing_in_common(digits):
    images, labels = digits[0][1000:1024], digits[1][1000:1024]
    seen, known = federation(images, labels, "noise:scale=1", own=digits[0][:400])
    targets = targets_of(seen)
    together = psnr(AllRoundsInversion()(seen, known, targets), images).mean()
    newest = psnr(DecoderInversion()(seen, known, targets), images).mean()
    floor = -10 * (digits[0][:400].mean(0) - images).square().flatten(1).mean(1).log10().mean()
    assert together > newest + 0.7
    assert together > floor + 0.7


def test_on_a_run_that_kept_its_rounds_and_not_on_one_that_did_not(tmp_path):
    config = small("fedallrep", per_class=20, clients=3, rounds=3, auxiliary=0.5, keep=(1, 2))
    run, prepared = trained_small(tmp_path / "run", config)
    card = ThreatModel(attacker_data="same_domain", rounds_seen=3)
    asked = {"n_targets": 6, "seed": 0}
    evidence = build_case(RunSource(run, prepared, "representation"), card, AllRoundsInversion(iterations=5), **asked)
    assert set(evidence.knowledge.earlier) == {(t, k) for t in (1, 2) for k in evidence.knowledge.extractors}
    seen = evidence.observations, evidence.knowledge, evidence.targets
    found = AllRoundsInversion(iterations=5)(*seen)
    assert found.images.shape == (6, 1, 1, 8, 8)
    forgetful, prepared = trained_small(tmp_path / "other", replace(config, keep=()))
    with pytest.raises(UserError, match=r"none is kept; train with keep=2, once for each round"):
        build_case(RunSource(forgetful, prepared, "representation"), card, AllRoundsInversion(), **asked)
