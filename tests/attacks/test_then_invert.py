"""Attacks of two parts: a decoder learns behind as much noise as the recovered vectors are expected to be wrong by."""

from dataclasses import dataclass, replace

import pytest
import torch
from federations import CPU

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.read.target_features import list_targets, target_feature
from fedpriv.attacks.recover.then_invert import Recovered, RecoverThenInvert, as_uploads
from fedpriv.datasets import load_dataset
from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import as_unit
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import CLASS_MEANS
from fedpriv.wire.payloads import Prototypes

WRONG = 3.0


@dataclass(frozen=True, kw_only=True)
class Blurred(RecoverThenInvert):
    """A recovery that is wrong by vectors of one length, and says so or not."""

    told: bool = True

    name = "blurred"
    summary = "for tests"
    targets = CLASS_MEANS

    def recover(self, problem: AttackProblem) -> Recovered:
        """Return the uploaded vectors, each moved in a direction of its own."""
        rng = generator(0, "blur")
        found = []
        for target in problem.targets:
            vector = target_feature(problem.observations, target)
            step = torch.randn(len(vector), generator=rng)
            found.append(vector + WRONG * step / step.norm())
        distance = torch.full((len(found),), WRONG) if self.told else None
        return Recovered(as_uploads(found, problem.targets), problem.targets, distance=distance)


@pytest.fixture(scope="module")
def problem():
    samples = load_dataset("digits", SourceOptions(None, False, None, None)).samples
    order = torch.randperm(len(samples), generator=generator(0, "shuffle"))
    images, labels = as_unit(samples.images)[order], samples.labels[order]
    matrix = torch.randn(64, 128, generator=generator(0, "extractor")) / 8

    def extractor(shown):
        return torch.relu((shown.flatten(1) - 0.3) @ matrix)

    card = KnowledgeCard(attacker_data="same_domain")
    known = Knowledge(card, (1, 8, 8), 10, extractors={0: extractor}, public_images=images[:400])
    chosen = torch.stack([(labels[1000:] == label).nonzero()[0, 0] + 1000 for label in range(10)])
    seen = (Observation(1, 0, (Prototypes(extractor(images[chosen]), torch.arange(10)),), ()),)
    return seen, replace(known, public_labels=labels[:400]), images[chosen]


def psnr(attack, problem):
    seen, known, images = problem
    found = attack(seen, known, list_targets(seen, "prototype"), seed=0, device=CPU)
    return float((-10 * (found.images[:, 0] - images).square().flatten(1).mean(1).log10()).mean())


def test_who_says_how_wrong_a_vector_may_be_is_decoded_with_that_in_mind(problem):
    told, untold, fitted = (
        psnr(attack, problem) for attack in (Blurred(), Blurred(told=False, iterations=1), Blurred(told=False))
    )
    assert told > untold + 1
    assert told > fitted + 1


def test_what_defenses_did_is_no_concern_of_recovered_vectors(problem):
    seen, known, images = problem
    defended = replace(known, defended={(1, 0): lambda rows, seed: torch.zeros_like(rows)})
    assert psnr(Blurred(told=False), (seen, defended, images)) == psnr(Blurred(told=False), problem)
