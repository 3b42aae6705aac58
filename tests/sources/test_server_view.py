"""Behind secure aggregation a server sees one sum a round: by hand, weighted by samples, and without the target."""

import pytest
import torch
from compare import expect_close, expect_same

from fedpriv.attacks.observation import Observation
from fedpriv.sources.source import mean_upload, summed, summed_without_own
from fedpriv.uploads.payloads import AngleMatrix, Classifier, Kernel, LabelCounts, Prototypes, SampleCount, get_payload
from fedpriv.util.errors import UserError


def upload(value, count=None, **others):
    sent = (Classifier({"weight": torch.full((2, 3), value), "bias": torch.tensor([value, -value])}),)
    return sent if count is None else (*sent, SampleCount(torch.tensor([count])))


def seen(round_, client, *payloads):
    return Observation(round_, client, payloads, ())


def test_a_mean_by_hand_is_weighted_by_numbers_of_samples_which_are_added_up():
    state = get_payload(mean_upload([upload(1.0), upload(4.0), upload(7.0)]), Classifier).state
    expect_close(state["weight"], torch.full((2, 3), 4.0), atol=1e-6)
    expect_close(state["bias"], torch.tensor([4.0, -4.0]), atol=1e-6)
    assert state["weight"].dtype == torch.float32
    found = mean_upload([upload(1.0, 1), upload(5.0, 3)])
    expect_close(get_payload(found, Classifier).state["weight"], torch.full((2, 3), 4.0), atol=1e-6)
    assert int(get_payload(found, SampleCount).count) == 4


def test_histograms_are_added_up_and_kernels_averaged():
    histograms = [(LabelCounts(torch.tensor(own)),) for own in ([3, 0, 1], [1, 2, 0])]
    assert get_payload(mean_upload(histograms), LabelCounts).counts.tolist() == [4, 2, 1]
    kernels = [(Kernel(torch.eye(2) * scale),) for scale in (1.0, 3.0)]
    expect_close(get_payload(mean_upload(kernels), Kernel).matrix, 2 * torch.eye(2), atol=1e-6)


def test_angle_matrices_become_dense():
    blocks = torch.ones(2, 2, 2)
    found = get_payload(mean_upload([(AngleMatrix(blocks),), (AngleMatrix(3 * blocks),)]), AngleMatrix).blocks
    assert found.shape == (1, 4, 4)
    expect_close(found[0], torch.block_diag(2 * blocks[0], 2 * blocks[1]), atol=1e-6)


def test_what_a_server_needs_one_by_one_is_not_added_up():
    sent = [(Prototypes(torch.zeros(1, 2), torch.tensor([0])),)] * 2
    with pytest.raises(UserError) as refused:
        mean_upload(sent)
    assert str(refused.value) == (
        "uploads of prototype are not added up: the server of a method that sends them needs each"
    )


ROUNDS = (
    seen(1, 0, *upload(1.0)),
    seen(1, 1, *upload(3.0)),
    seen(1, 2, *upload(8.0)),
    seen(2, 0, *upload(10.0)),
    seen(2, 2, *upload(20.0)),
)


def values(observations):
    return [float(get_payload(one.upload, Classifier).state["weight"][0, 0]) for one in observations]


def test_every_client_of_a_round_stands_with_the_rounds_mean():
    found = summed(ROUNDS)
    assert values(found) == pytest.approx([4, 4, 4, 15, 15])
    assert [(one.round, one.client) for one in found] == [(one.round, one.client) for one in ROUNDS]
    assert found[0].upload is found[1].upload  # the one sum that there is


def test_nothing_of_a_client_is_in_its_own_control():
    found = summed_without_own(ROUNDS)
    assert values(found) == pytest.approx([5.5, 4.5, 2, 20, 10])
    changed = summed_without_own((seen(1, 0, *upload(99.0)), *ROUNDS[1:]))
    expect_same(changed[0].upload[0].state["weight"], found[0].upload[0].state["weight"])
    assert summed_without_own(ROUNDS[:4]) is None  # in round 2 nobody else is left
