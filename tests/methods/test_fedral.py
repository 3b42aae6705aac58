"""FedRAL: angle matrices, sparsified by client and averaged element by element."""

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, SHAPE, SIZES, WIDTH, World

from fedpriv.federation.local_training import local_batches, represent
from fedpriv.federation.method import LocalTraining, Plan
from fedpriv.federation.states import put
from fedpriv.methods import fedral
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import AngleMatrix, SampleCount, get_payload
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator


def upload(*blocks, count):
    return AngleMatrix(torch.tensor(blocks)), SampleCount(torch.tensor([count]))


DENSE = upload([[1.0, 2.0], [3.0, 4.0]], count=1)
DIAGONAL = upload([[5.0]], [[8.0]], count=3)


def test_the_weighted_mean_counts_what_was_not_sent_as_zero():
    world = World("fedral")
    state, broadcast = world.method.server_step(world.server, {}, [(0, DENSE), (1, DIAGONAL)], generator(0))
    assert state["angle"].tolist() == [[4.0, 0.5], [0.75, 7.0]]  # (1 * 1 + 3 * 5) / 4, 1 * 2 / 4, ...
    assert get_payload(broadcast, AngleMatrix).blocks.tolist() == [[[4.0, 0.5], [0.75, 7.0]]]


def test_the_naive_mean_is_over_those_who_sent():
    world = World("fedral", {"aggregation": "naive"})
    state, _ = world.method.server_step(world.server, {}, [(0, DENSE), (1, DIAGONAL)], generator(0))
    assert state["angle"].tolist() == [[3.0, 2.0], [3.0, 6.0]]
    state, _ = world.method.server_step(world.server, {}, [(1, DIAGONAL)], generator(0))
    assert state["angle"].tolist() == [[5.0, 0.0], [0.0, 8.0]]


def test_matrix_and_model_take_one_sgd_step_down_the_cross_entropy_of_the_turned_representation():
    world = World("fedral", {"blocks": [1]}, batch_size=3, max_steps=1, learning_rate=0.1)
    server, broadcast, states = world.start()
    _, _, after, uploads = world.round(1, server, broadcast, states)
    angle = get_payload(broadcast, AngleMatrix).blocks[0]
    for k, sent in uploads:
        setup = world.setups[k]
        index = local_batches(len(setup.train), setup.training, generator(0, "step", 1, k))[0]
        put(setup.model, states[k], "model")
        images, labels = setup.train.batch(index)
        features = represent(setup.model, images)
        weight, bias = states[k]["model.head.weight"], states[k]["model.head.bias"]
        turned = features + features @ angle
        error = (torch.softmax(turned @ weight.T + bias, 1) - torch.eye(CLASSES)[labels]) / len(labels)
        expect_close(get_payload(sent, AngleMatrix).blocks[0], angle - 0.1 * features.T @ (error @ weight), atol=1e-5)
        expect_close(after[k]["model.head.weight"], weight - 0.1 * error.T @ turned, atol=1e-5)
        expect_same(after[k]["angle"], get_payload(sent, AngleMatrix).blocks[0])


def test_block_numbers_that_do_not_divide_the_width_are_refused():
    blueprint = Blueprint("small-cnn", SHAPE, CLASSES, WIDTH)
    options = fedral.Options(blocks=(4, 3))
    with pytest.raises(UserError, match=r"option blocks: 3 diagonal blocks.*width 16.*or change width$"):
        fedral.METHOD.check(Plan((blueprint,) * 3, options, SIZES, LocalTraining()))
    fedral.METHOD.check(Plan((blueprint,) * 3, fedral.Options(blocks=(4, 16)), SIZES, LocalTraining()))
    with pytest.raises(UserError, match="blocks"):
        parse(fedral.Options, {"blocks": [0]}, "options")
