"""FedTGP, FPL and FedHeNN: each aggregation and loss by hand."""

import math
from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from hypothesis import given
from hypothesis import strategies as st
from method_cases import CLASSES, SHAPE, World, copies, expect_step, same
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import alignment, linear_kernel, procrustes_distance
from fedpriv.federation.local_training import class_means, local_batches, represent
from fedpriv.federation.states import put
from fedpriv.methods import fedhenn, fpl
from fedpriv.methods.fedproto import adaptive_margin, generate, separation_loss
from fedpriv.methods.fpl import coarsest_groups, first_neighbour_groups
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.payloads import Coefficient, Kernel, Prototypes, PublicImages, get_payload
from fedpriv.util.seeds import generator

# ---------------------------------------------------------------- FedTGP


def test_the_margin_is_the_largest_gap_to_a_nearest_other_class():
    # Class means 0, 3 and 10 on a line: gaps 3, 3 and 7.
    features, classes = torch.tensor([[-1.0], [1.0], [3.0], [10.0]]), torch.tensor([0, 0, 1, 3])
    assert adaptive_margin(features, classes, 100.0) == pytest.approx(7)
    assert adaptive_margin(features, classes, 5.0) == 5.0
    assert adaptive_margin(features[:2], classes[:2], 100.0) == 100.0


def test_the_separation_loss_by_hand():
    # One prototype at the origin of class 0; generated ones at distances 3 and 5; margin 1 on the true class.
    loss = separation_loss(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([[3.0, 0.0], [3.0, 4.0]]), margin=1.0)
    assert loss.item() == pytest.approx(math.log(1 + math.exp(4 - 5)), abs=1e-6)


def test_one_server_step_of_fedtgp_goes_down_the_gradient():
    world = World("fedtgp", {"server": {"learning_rate": 0.5, "batch_size": 100, "epochs": 1}})
    server, broadcast, states = world.start()
    assert broadcast == ()
    trained, sent, _, uploads = world.round(1, server, broadcast, states)
    rows = [get_payload(upload, Prototypes) for _, upload in uploads]
    features, classes = torch.cat([row.features for row in rows]), torch.cat([row.classes for row in rows])
    means, _, _ = class_means(features, classes)
    gaps = (means[:, None] - means).norm(dim=2) + torch.eye(len(means)) * 1e9
    weights = {name: value.clone().requires_grad_() for name, value in server.items()}
    hidden = torch.relu(weights["embedding.weight"] @ weights["first.weight"].T + weights["first.bias"])
    prototypes = hidden @ weights["second.weight"].T + weights["second.bias"]
    distance = (features[:, None] - prototypes).norm(dim=2)
    margin = min(gaps.min(1).values.max(), torch.tensor(100.0)) * torch.eye(CLASSES)[classes]
    cross_entropy(-(distance + margin), classes).backward()
    for name, weight in weights.items():
        expect_close(trained[name], server[name] - 0.5 * weight.grad, atol=1e-5)
    expect_same(get_payload(sent, Prototypes).classes, torch.arange(CLASSES))
    expect_same(get_payload(sent, Prototypes).features, generate(trained))


# ---------------------------------------------------------------- FPL


def test_the_contrastive_term_by_hand():
    # Class 0 has clusters along x and -x, class 1 along y; the sample lies along x: cosines 1, -1, 0.
    clusters, classes = torch.tensor([[2.0, 0.0], [-1.0, 0.0], [0.0, 3.0]]), torch.tensor([0, 0, 1])
    terms = fpl.contrastive_terms(torch.tensor([[5.0, 0.0], [5.0, 0.0]]), torch.tensor([0, 1]), clusters, classes, 0.5)
    total = math.exp(2) + math.exp(-2) + 1
    assert terms.tolist() == pytest.approx([-math.log((math.exp(2) + math.exp(-2)) / total), math.log(total)], abs=1e-6)


def test_fpl_steps_down_its_loss_and_skips_unknown_classes_but_counts_them():
    options = {"temperature": 0.5, "contrast": 0.7, "consistency": 0.3}
    world = World("fpl", options, batch_size=6, max_steps=1, learning_rate=0.1)
    _, _, states = world.start()
    setup, width = world.setups[0], 16
    clusters = torch.randn(3, width, generator=generator(5))
    sent = Prototypes(clusters, torch.tensor([0, 1, 1]))
    trained, _ = world.method.client_step(setup, states[0], (sent,), generator(0, "step"))
    index = local_batches(len(setup.train), setup.training, generator(0, "step"))[0]
    images, labels = setup.train.batch(index)
    assert (labels > 1).any()
    assert (labels <= 1).any()
    put(setup.model, states[0], "model")
    features = setup.model.represent(images)
    loss = cross_entropy(setup.model.head(features), labels)
    for feature, label in zip(features, labels.tolist(), strict=True):
        if label > 1:
            continue
        scores = torch.exp(torch.cosine_similarity(feature[None], clusters) / 0.5)
        own = scores[:1] if label == 0 else scores[1:]
        mean = clusters[0] if label == 0 else clusters[1:].mean(0)
        term = -0.7 * torch.log(own.sum() / scores.sum()) + 0.3 * ((feature - mean) ** 2).mean()
        loss = loss + term / len(labels)
    expect_step(setup.model, trained, loss, 0.1)


# ---------------------------------------------------------------- FedHeNN


def test_eta_grows_as_scheduled():
    for options, expected in (({}, [0.5, 1.0, 1.5, 2.0]), ({"schedule": "constant"}, [2.0] * 4)):
        server = replace(World("fedhenn", {"weight": 2.0} | options).server, rounds=4)
        assert [float(fedhenn.coefficient(server, t).value) for t in (1, 2, 3, 4)] == expected


@pytest.mark.parametrize("name", ["fedhenn", "fedhenn-kernel"])
def test_one_local_step_goes_down_cross_entropy_plus_eta_times_one_minus_alignment(name):
    world = World(name, {"schedule": "constant", "weight": 3.0}, batch_size=4, max_steps=1, learning_rate=0.1)
    _, _, states = world.start()
    setup, images = world.setups[0], world.server.public[:6]
    reference = linear_kernel(torch.randn(6, 3, generator=generator(2)))
    asked = torch.rand(5, *SHAPE, generator=generator(3))
    shown = images if name == "fedhenn" else torch.cat([images, asked])
    message = (PublicImages(shown), Kernel(reference), Coefficient(torch.tensor([3.0])))
    trained, upload = world.method.client_step(setup, states[0], message, generator(4))
    put(setup.model, states[0], "model")
    index = local_batches(len(setup.train), setup.training, generator(4))[0]
    batch, labels = setup.train.batch(index)
    loss = cross_entropy(setup.model(batch), labels)
    loss = loss + 3 * (1 - alignment(linear_kernel(setup.model.represent(images)), reference))
    expect_step(setup.model, trained, loss, 0.1)
    if name == "fedhenn-kernel":
        put(setup.model, trained, "model")
        expect_close(get_payload(upload, Kernel).matrix, linear_kernel(represent(setup.model, asked)), rtol=1e-4)


def test_the_homogeneous_term_by_procrustes_distance_on_the_images_that_a_batch_draws():
    world = World("fedhenn-homogeneous", {"distance": "procrustes", "rad_batch": 4})
    setup, images, reference = world.setups[0], world.server.public[:6], torch.randn(6, 16, generator=generator(2))
    loss = fedhenn.aligned_loss(setup, (Coefficient(torch.tensor([3.0])),), images, reference, generator(4))
    chosen, (batch, labels) = torch.randperm(6, generator=generator(4))[:4], setup.train.batch(torch.arange(5))
    distance = procrustes_distance(setup.model.represent(images[chosen]), reference[chosen])
    expect_close(loss(batch, labels), cross_entropy(setup.model(batch), labels) + 3 * distance)


def test_the_reference_of_fedhenn_is_the_mean_kernel_of_everybodys_newest_model():
    world = World("fedhenn", {"rad_size": 6})
    server, broadcast, states = world.start()
    for chosen in ((0, 1, 2), (1,)):
        server, broadcast, states, _ = world.round(len(chosen), server, broadcast, states, chosen)
        images, kernels = get_payload(broadcast, PublicImages).images, []
        for setup, state in zip(world.setups, states, strict=True):
            put(setup.model, state, "model")
            kernels.append(linear_kernel(represent(setup.model, images)))
        expect_close(get_payload(broadcast, Kernel).matrix, sum(kernels) / 3, rtol=1e-4, atol=1e-5)


def test_the_kernel_variant_refers_to_the_images_that_were_represented_before():
    world = World("fedhenn-kernel", {"rad_size": 5})
    server, first, states = world.start()
    assert [payload.kind for payload in first] == ["public-images", "coefficient"]
    _, second, states, uploads = world.round(1, server, first, states)
    expect_same(get_payload(second, PublicImages).images[:5], get_payload(first, PublicImages).images)
    assert len(get_payload(second, PublicImages).images) == 10
    kernels = [get_payload(upload, Kernel).matrix for _, upload in uploads]
    expect_close(get_payload(second, Kernel).matrix, sum(kernels) / 3, rtol=1e-5)
    assert all(payload.kind == "kernel" for _, upload in uploads for payload in upload)


def test_public_images_leave_no_trace_in_batch_norm_and_kernels_need_parameters_only():
    blueprint = Blueprint("resnet18", (3, 32, 32), CLASSES, 16)
    one, other = build_model(blueprint, 0), build_model(blueprint, 0)
    for layer in other.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.running_mean.fill_(3.0)
    images = torch.rand(4, 3, 32, 32)
    frozen = copies(one.state_dict())
    kernel = fedhenn.public_kernel(one.train(), images, fedhenn.Options())
    assert same(one.state_dict(), frozen)
    assert all(layer.training for layer in one.modules())
    assert all(layer.track_running_stats for layer in one.modules() if isinstance(layer, torch.nn.BatchNorm2d))
    expect_same(kernel, fedhenn.public_kernel(other.eval(), images, fedhenn.Options()))


def at(*degrees):
    """Unit vectors at angles, whose cosine distances grow with the angle between them."""
    return torch.tensor([[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in degrees])


def test_a_drawn_example():
    #  first neighbours: 0 <-> 4, 10 -> 4 | 60 <-> 65 | 150 <-> 158, 170 -> 158 | 260 <-> 262
    points = at(0, 60, 150, 4, 260, 65, 10, 158, 262, 170)
    assert first_neighbour_groups(points).tolist() == [0, 1, 2, 0, 3, 1, 0, 2, 3, 2]
    # Means lie near 5, 62, 159 and 261 degrees: 5 and 62 are nearest to each other (57), so are 159 and 62 (97, 102):
    # 159 -> 62 joins {5, 62}, while 261 -> 159 joins too, so the next level is one group and is dropped.
    assert coarsest_groups(points).tolist() == [0, 1, 2, 0, 3, 1, 0, 2, 3, 2]


def test_one_or_two_points_are_one_group_and_lengths_do_not_matter():
    assert coarsest_groups(at(7)).tolist() == [0]
    assert coarsest_groups(at(7, 190)).tolist() == [0, 0]
    points = at(0, 1, 20, 21, 180, 181, 200, 201)
    expect_same(first_neighbour_groups(points), first_neighbour_groups(points * torch.arange(1.0, 9)[:, None]))


@given(st.integers(2, 30), st.integers(0, 10**6))
def test_every_group_has_at_least_two_members_and_order_does_not_matter(size, seed):
    rng = torch.Generator().manual_seed(seed)
    points = torch.randn(size, 4, generator=rng)
    groups = coarsest_groups(points)
    assert torch.bincount(groups).min() >= 2
    order = torch.randperm(size, generator=rng)
    shuffled = coarsest_groups(points[order])
    together = groups[order][:, None] == groups[order]
    expect_same(together, shuffled[:, None] == shuffled)
