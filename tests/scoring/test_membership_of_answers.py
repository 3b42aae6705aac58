"""Membership from kernels and public outputs claims nothing of answers that no candidate has a part in."""

import numpy as np
import pytest
import torch
from eval_cases import ABOUT

from fedpriv.algebra.matrices import linear_kernel
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.scoring.inference_case import InferenceCase
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.membership import evaluate
from fedpriv.scoring.records import Provenance
from fedpriv.sources.case import Case
from fedpriv.sources.source import shuffle
from fedpriv.sources.truth import Holdings
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Kernel, PublicImages, PublicLogits

CLIENTS, EACH, PUBLIC, C = 8, 30, 60, 3
PROVENANCE = Provenance(**{name: value for name, value in ABOUT if name in Provenance.model_fields})


def case(kind, seed):
    """Clients that answer with class and leaning of their own, and images that none of it depends on."""
    rng = generator(seed, "answers of nobody's images")
    images = torch.rand(2 * CLIENTS * EACH + PUBLIC, 1, 6, 6, generator=rng)
    labels = torch.arange(len(images)) % C
    public, known = images[-PUBLIC:], labels[-PUBLIC:]
    observations = []
    for client in range(CLIENTS):
        fit = (2 * torch.eye(C)[known] + torch.randn(PUBLIC, C, generator=rng)) * torch.rand(C, generator=rng)
        if kind == "kernel":
            sent = Observation(1, client, (Kernel(linear_kernel(fit)),), (PublicImages(public),))
        else:
            sent = Observation(1, client, (PublicLogits(fit, torch.arange(PUBLIC)),), ())
        observations.append(sent)
    card = ThreatModel(extractor="none", attacker_data="same_domain")
    granted = Knowledge(card, (1, 6, 6), C, public_images=public, public_labels=known)
    held = {k: np.arange(k * EACH, (k + 1) * EACH) for k in range(CLIENTS)}
    seen = Case(tuple(observations), shuffle(observations), granted, ())
    held_out = {k: own + CLIENTS * EACH for k, own in held.items()}
    truth = Holdings(Samples(images[:-PUBLIC], labels[:-PUBLIC]), held, held_out=held_out)
    return InferenceCase(seen, truth, kind, seed)


@pytest.mark.parametrize("kind", ["kernel", "public-logits"])
def test_answers_of_nobodys_images_claim_nothing(kind):
    for seed in range(6):
        assert judge(evaluate(MembershipInference(), case(kind, seed), PROVENANCE)).claims == ()
