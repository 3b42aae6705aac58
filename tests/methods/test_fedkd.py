"""FedKD: mentor and mentee, and the low-rank factors that are sent."""

import math

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import SHAPE, World

from fedpriv.algebra.low_rank import compress, recover
from fedpriv.methods import fedkd
from fedpriv.uploads.payloads import Energy, LowRankModel, get_payload
from fedpriv.util.seeds import generator


def test_fedkd_loss_by_hand():
    mentor = torch.tensor([[1.0, 0.0]]), torch.tensor([[math.log(3), 0.0]])
    mentee = torch.tensor([[0.0, 2.0]]), torch.tensor([[0.0, 0.0]])
    weight = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # W r_s = (2, 0); squared distance to r_m 1, mean over two 0.5
    alone = -math.log(0.75) - math.log(0.5)
    divergences = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    divergences += 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    loss = fedkd.distillation_loss(mentor, mentee, weight, torch.tensor([0]))
    assert float(loss) == pytest.approx(alone + (divergences + 2 * 0.5) / alone, abs=1e-6)


def test_fedkds_share_of_energy_grows_by_the_published_schedule():
    world = World("fedkd")  # 5 rounds planned
    server, broadcast, states = world.start()
    seen = []
    for number in range(1, 6):
        seen.append(float(get_payload(broadcast, Energy).share))
        server, broadcast, states, _ = world.round(number, server, broadcast, states)
    assert seen == pytest.approx([0.95, 0.956, 0.962, 0.968, 0.974])


def test_fedkds_server_averages_recovered_mentees_and_compresses_the_mean():
    world = World("fedkd", {"energy_start": 1.0, "energy_end": 1.0})
    server, _, _ = world.start()
    rows = [torch.outer(torch.arange(1.0, 7), torch.ones(5)), torch.outer(torch.ones(6), torch.arange(5.0))]
    uploads = [(k, (LowRankModel(compress({"w": row}, 0.999)),)) for k, row in enumerate(rows)]
    assert get_payload(uploads[0][1], LowRankModel).factors.keys() == {"w.u", "w.s", "w.v"}
    state, broadcast = world.method.server_step(world.server, server, uploads, generator(0))
    mean = (rows[0] + rows[1]) / 2
    expect_close(state["small.w"], mean, atol=1e-5)
    expect_close(recover(get_payload(broadcast, LowRankModel).factors)["w"], mean, atol=1e-4)
    assert int(state["rounds-done"]) == 1


def test_fedkd_predicts_with_the_mentor_alone_and_keeps_its_bridge():
    world = World("fedkd")
    server, broadcast, first = world.start()
    _, broadcast, second, _ = world.round(1, server, broadcast, first)
    assert world.method.apply_broadcast(world.setups[0], second[0], broadcast) is second[0]
    assert not torch.equal(first[0]["bridge.weight"], second[0]["bridge.weight"])
    other = second[0] | {"bridge.weight": first[0]["bridge.weight"]}
    images = torch.rand(3, *SHAPE)
    predict = world.method.predict
    expect_same(predict(world.setups[0], second[0], images), predict(world.setups[0], other, images))
    steps = [
        world.method.client_step(world.setups[0], state, broadcast, generator(0, "step"))[0]
        for state in (second[0], other)
    ]
    assert not torch.equal(steps[0]["model.head.weight"], steps[1]["model.head.weight"])
