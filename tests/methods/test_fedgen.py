"""FedGen: label counts, the generator of representations, and what clients learn from it."""

from dataclasses import replace

import pytest
import torch
from compare import expect_same
from method_cases import CLASSES, SIZES, SMALL, WIDTH, World, copies, expect_step, same, trained
from torch.nn.functional import cross_entropy

from fedpriv.federation.local_training import local_batches
from fedpriv.federation.states import put, take
from fedpriv.methods import fedgen
from fedpriv.uploads.ledger import FederationSizes
from fedpriv.uploads.payloads import Generator, LabelCounts, find_payload, get_payload
from fedpriv.util.seeds import generator, global_seed


@pytest.mark.parametrize("name", ["fedgen", "fedgen-homogeneous"])
def test_fedgen_sends_label_counts_once_and_the_server_sums_them(name):
    world = World(name, SMALL, batch_size=4)
    server, broadcast, states = world.start()
    assert find_payload(broadcast, Generator) is None
    server, broadcast, states, uploads = world.round(1, server, broadcast, states, chosen=(0, 1))
    for k, upload in uploads:
        assert get_payload(upload, LabelCounts).counts.tolist() == [
            int((world.setups[k].train.labels == c).sum()) for c in range(CLASSES)
        ]
    assert int(get_payload(broadcast, LabelCounts).counts.sum()) == SIZES[0] + SIZES[1]
    server, broadcast, states, uploads = world.round(2, server, broadcast, states)
    assert [find_payload(upload, LabelCounts) is None for _, upload in uploads] == [True, True, False]
    everybody = torch.cat([setup.train.labels for setup in world.setups])
    expect_same(get_payload(broadcast, LabelCounts).counts, torch.bincount(everybody, minlength=CLASSES))


@pytest.mark.parametrize(("noise", "classes", "expected"), [(32, 10, 285_696), (512, 10, 531_456)])
def test_the_generator_has_as_many_parameters_as_published(noise, classes, expected):
    facts = FederationSizes(1, classes, 512, fedgen.Options(noise=noise))
    assert fedgen.sizes(facts) == {("broadcast", "generator.state"): expected}
    made = fedgen.FeatureGenerator(classes, 512, noise, 512)
    assert sum(value.numel() for value in made.state_dict().values()) == expected


def test_the_server_trains_the_generator_towards_what_the_head_recognises():
    options = {"noise": 4, "hidden": 32, "learning_rate": 0.01, "steps": 0, "batch_size": 64}
    world = World("fedgen", options)
    made = fedgen.make_generator(world.setups[0], 1, torch.device("cpu"))
    torch.manual_seed(2)
    head = torch.randn(CLASSES, WIDTH), torch.randn(CLASSES)
    histogram = torch.tensor([5, 1, 0, 2])

    def loss():
        with global_seed(3), torch.no_grad():
            classes = fedgen.draw_classes(histogram, 256)
            return float(cross_entropy(made(classes) @ head[0].T + head[1], classes))

    before, frozen = loss(), copies(take(made, "g"))
    fedgen.train_generator(made, histogram, head, world.options, seed=0)
    assert same(take(made, "g"), frozen)
    fedgen.train_generator(made, histogram, head, replace(world.options, steps=60), seed=0)
    assert loss() < before / 4


def test_a_step_of_fedgen_is_its_loss_by_hand():
    options = SMALL | {"weight": 0.5}
    world, _, broadcast, states, _ = trained("fedgen", options)
    setup, model = world.setups[0], world.setups[0].model
    setup = replace(setup, training=replace(setup.training, max_steps=1, batch_size=4, learning_rate=0.2))
    state, _ = world.method.client_step(setup, states[0], broadcast, generator(5))
    put(model, world.method.apply_broadcast(setup, states[0], broadcast), "model")
    rng = generator(5)
    index = local_batches(len(setup.train), setup.training, rng)[0]
    made = fedgen.make_generator(setup, 0, torch.device("cpu"))
    made.load_state_dict(dict(get_payload(broadcast, Generator).state))
    with global_seed(int(torch.randint(2**62, (1,), generator=rng))):
        classes = fedgen.draw_classes(get_payload(broadcast, LabelCounts).counts, 4)
        features = made(classes).detach()
    images, labels = setup.train.batch(index)
    loss = cross_entropy(model(images), labels) + 0.5 * cross_entropy(model.head(features), classes)
    expect_step(model, state, loss, 0.2)
