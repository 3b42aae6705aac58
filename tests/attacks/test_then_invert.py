"""Attacks of two parts: a decoder learns behind as much noise as the recovered vectors are expected to be wrong by."""

from dataclasses import dataclass, replace

import pytest
import torch

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.base import Recovered, RecoverThenInvert, as_uploads
from fedpriv.attacks.inputs.targets import list_targets, target_feature
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.uploads.kinds import CLASS_MEANS
from fedpriv.uploads.payloads import Prototypes
from fedpriv.util.seeds import generator

WRONG = 3.0


@dataclass(frozen=True, kw_only=True)
class Blurred(RecoverThenInvert):
    """A recovery that is wrong by vectors of one length, and says so or not."""

    told: bool = True
    wrong: float = WRONG
    exact: bool = False

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
            found.append(vector + self.wrong * step / step.norm())
        distance = torch.full((len(found),), self.wrong) if self.told else None
        uploads = as_uploads(found, problem.targets, [1] * len(found))
        return Recovered(uploads, problem.targets, distance=distance, exact=self.exact)


@pytest.fixture(scope="module")
def problem(digits):
    images, labels = digits
    matrix = torch.randn(64, 128, generator=generator(0, "extractor")) / 8

    def extractor(shown):
        return torch.relu((shown.flatten(1) - 0.3) @ matrix)

    card = ThreatModel(attacker_data="same_domain")
    known = Knowledge(card, (1, 8, 8), 10, extractors={0: extractor}, public_images=images[:400])
    chosen = torch.stack([(labels[1000:] == label).nonzero()[0, 0] + 1000 for label in range(10)])
    seen = (Observation(1, 0, (Prototypes(extractor(images[chosen]), torch.arange(10)),), ()),)
    return seen, replace(known, public_labels=labels[:400]), images[chosen]


def psnr(attack, problem):
    seen, known, images = problem
    found = attack(seen, known, list_targets(seen, "prototype"))
    return float((-10 * (found.images[:, 0] - images).square().flatten(1).mean(1).log10()).mean())


def test_who_says_how_wrong_a_vector_may_be_is_decoded_with_that_in_mind(problem):
    assert psnr(Blurred(), problem) > psnr(Blurred(told=False), problem) + 1


def test_more_steps_bring_images_of_exact_vectors_nearer_as_far_as_that_helps(problem):
    exact = Blurred(told=False, wrong=0.0, exact=True)
    seen, known, images = problem
    few, some, many = (psnr(replace(exact, iterations=number), problem) for number in (1, 30, 300))
    assert few <= some + 0.05
    assert some <= many + 0.05
    assert many > few + 1
    blind = replace(known, card=replace(known.card, extractor="shadow"))  # whose fits lead elsewhere
    assert psnr(replace(exact, iterations=300), (seen, blind, images)) == psnr(replace(exact, exact=False), problem)
