"""Decoders whose weights are searched: rows start as the decoder decodes, do not touch one another, and come nearer."""

import dataclasses

import pytest
import torch
from compare import expect_close

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.decoder import DecoderInversion, DecoderWeights
from fedpriv.attacks.inversion.decoder_network import DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Representations


@pytest.fixture(scope="module")
def ground():
    """Blurred noise as images, and extractors of different widths."""
    rng = generator(0)
    coarse = torch.rand(300, 1, 4, 4, generator=rng)
    images = torch.nn.functional.interpolate(coarse, size=8, mode="bilinear")
    matrices = [torch.randn(64, width, generator=rng) / 8 for width in (20, 24)]
    extractors = [lambda x, m=m: torch.tanh(6 * (x.flatten(1) - 0.5) @ m) for m in matrices]
    return images, extractors


@pytest.fixture(scope="module")
def decoder(ground):
    images, extractors = ground
    known, held = (Pairs([one(part) for one in extractors], part) for part in (images[20:200], images[:20]))
    return train_decoder(known, held, DecoderTraining(60, 2e-3, 16, 16), 0)


def test_a_row_starts_with_what_the_decoder_gives_whichever_extractor_is_its_own(ground, decoder):
    images, extractors = ground
    for place, extractor in enumerate(extractors):
        features = extractor(images[200:203])
        expect_close(DecoderWeights(decoder, features, [place] * 3).clean(), decoder(features, place), atol=1e-5)


def test_rows_move_weights_of_their_own_and_go_on_without_the_others(ground, decoder):
    images, extractors = ground
    prior = DecoderWeights(decoder, extractors[0](images[200:203]), [0, 0, 0])
    before = prior.clean().detach()
    with torch.no_grad():
        for values in prior.parameters:
            values[1] += 0.05
    after = prior.clean().detach()
    expect_close(after[[0, 2]], before[[0, 2]], atol=1e-6)
    assert (after[1] - before[1]).abs().max() > 0.01
    prior.keep(torch.tensor([1]))
    expect_close(prior.clean(), after[1:2], atol=1e-6)


def test_fitting_weights_brings_own_images_nearer_and_leaves_those_of_a_strange_upload_far(ground):
    images, extractors = ground
    card = KnowledgeCard(attacker_data="same_domain")
    known = Knowledge(card, (1, 8, 8), 4, extractors=dict(enumerate(extractors)), public_images=images[:200])
    private, labels = images[200:208], torch.zeros(8, dtype=torch.int64)

    def found(attack, features):
        seen = (Observation(1, 0, (Representations(features, labels),), ()),)
        return attack(seen, known, list_targets(seen, "representation"), seed=0)

    def error(result):
        return float((result.images[:, 0] - private).square().mean())

    decoded = DecoderInversion(iterations=40, width=16, refine=0)
    fitted = dataclasses.replace(decoded, refine=200, refine_over="weights")
    own, plain = found(fitted, extractors[0](private)), found(decoded, extractors[0](private))
    assert own.objective.mean() < 0.5 * plain.objective.mean()
    assert error(own) < 0.95 * error(plain)
    blind = float((images[:200].mean(0) - private).square().mean())
    assert error(found(fitted, extractors[0](private.roll(3, 0)))) > blind > error(own)
