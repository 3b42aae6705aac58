"""Parts of unmixing beside its posterior: which classes there are, and whether own images are there."""

import pytest
import torch
from compare import expect_close

from fedpriv.attacks.features.unmixing import UnmixedInversion, uploads_of
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Entangled


def test_classes_without_weight_are_left_out():
    first = Entangled(torch.zeros(4), torch.tensor([0.0, 0.4, 0.6]))
    second = Entangled(torch.ones(4), torch.tensor([0.0, 1.0, 0.0]))
    seen = [Observation(number, 0, (sent,), ()) for number, sent in enumerate((first, second))]
    features, weights, classes = uploads_of(seen, 0)
    assert classes.tolist() == [1, 2]
    assert weights.tolist() == [[pytest.approx(0.4), pytest.approx(0.6)], [1.0, 0.0]]
    assert features.shape == (2, 4)


def test_images_are_asked_for_only_where_the_card_grants_them():
    rng = torch.Generator().manual_seed(0)
    seen = tuple(
        Observation(number, 0, (Entangled(torch.rand(48, generator=rng), torch.rand(4, generator=rng)),), ())
        for number in range(12)
    )
    knowledge = Knowledge(KnowledgeCard(), (1, 8, 8), 4)
    with pytest.raises(UserError, match="prior=images needs images of the attacker's own"):
        UnmixedInversion(prior="images").unmixed(seen, 0, knowledge)
    alone = UnmixedInversion().unmixed(seen, 0, knowledge)
    expect_close(alone.prototypes, UnmixedInversion(prior="none").unmixed(seen, 0, knowledge).prototypes)
    assert alone.classes.tolist() == list(range(4))
