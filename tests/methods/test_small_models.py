"""Methods that share a small model beside the private ones: FedMRL, FML, FedAPEN, FedKD."""

import math

import pytest
import torch
from compare import expect_close, expect_same
from method_cases import CLASSES, SHAPE, WIDTH, World, copies, same
from torch import nn
from torch.nn.functional import cross_entropy

from fedpriv.algebra.low_rank import compress, recover
from fedpriv.federation.local_training import classify
from fedpriv.federation.method import LocalTraining, Plan
from fedpriv.federation.planned_traffic import message_sizes
from fedpriv.federation.states import inner
from fedpriv.methods import fedapen, fedkd, fedmrl, fml
from fedpriv.methods.shared.mutual import clip_each, divergence
from fedpriv.methods.shared.small_model import small_blueprint, small_scratch
from fedpriv.models.split import Blueprint
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.ledger import count
from fedpriv.wire.payloads import Energy, LowRankModel, SampleCount, SmallModel, get_payload
from fedpriv.wire.sizes import FederationSizes


def plan(options, name="small-cnn", width=WIDTH, shape=SHAPE, sizes=(11, 7, 5)):
    blueprint = Blueprint(name, shape, CLASSES, width)
    return Plan((blueprint,) * len(sizes), options, False, sizes, LocalTraining())


def played(world, rounds=2):
    server, broadcast, states = world.start()
    uploads = []
    for number in range(1, rounds + 1):
        server, broadcast, states, uploads = world.round(number, server, broadcast, states)
    return server, broadcast, states, uploads


# ---------------------------------------------------------------- the small model


def test_the_small_model_is_the_same_for_all_clients_whatever_their_own():
    own = [Blueprint(name, (3, 32, 32), 10, 512, mapping) for name, mapping in (("cnn4", "ap"), ("resnet18", "fc"))]
    assert small_blueprint(own[0], "auto") == small_blueprint(own[1], "auto")
    assert small_blueprint(own[0], "auto") == Blueprint("cnn4", (3, 32, 32), 10, 512)
    assert small_blueprint(Blueprint("small-mlp", (1, 8, 8), 10, 64), "auto").name == "small-cnn"
    assert small_blueprint(own[0], "cnn-5", 128) == Blueprint("cnn-5", (3, 32, 32), 10, 128)


def test_the_small_model_is_never_the_private_models_module():
    world = World("fml")
    setup = world.setups[0]
    assert small_blueprint(setup.blueprint, "auto") == setup.blueprint
    assert small_scratch(setup, setup.blueprint) is not setup.model


@pytest.mark.parametrize("name", ["fedmrl", "fml", "fedapen"])
def test_private_and_small_model_of_one_architecture_start_different(name):
    world = World(name)
    _, broadcast, states = world.start()
    small = get_payload(broadcast, SmallModel).state["extractor.0.weight"]
    assert not torch.equal(small, states[0]["model.extractor.0.weight"])


def test_before_any_broadcast_a_client_holds_the_small_model_that_the_server_will_send():
    world = World("fedmrl")
    _, broadcast, states = world.start()
    for state in states:
        for n, value in get_payload(broadcast, SmallModel).state.items():
            expect_same(state[f"small.{n}"], value)


@pytest.mark.parametrize("name", ["fedmrl", "fml", "fedapen"])
def test_clients_upload_small_models_of_their_own(name):
    _, _, _, uploads = played(World(name), 1)
    weights = [get_payload(upload, SmallModel).state["head.weight"] for _, upload in uploads]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_small_models_are_averaged_uniformly_or_by_counts():
    models = [SmallModel({"w": torch.tensor([1.0])}), SmallModel({"w": torch.tensor([5.0])})]
    counts = [SampleCount(torch.tensor([1])), SampleCount(torch.tensor([3]))]
    uploads = [(k, (model, count)) for k, (model, count) in enumerate(zip(models, counts, strict=True))]
    for name, options, mean in (
        ("fedmrl", {}, 4.0),
        ("fedmrl", {"averaging": "uniform"}, 3.0),
        ("fml", {}, 3.0),
    ):
        world = World(name, options)
        state, broadcast = world.method.server_step(world.server, {}, uploads, generator(0))
        assert get_payload(broadcast, SmallModel).state["w"].tolist() == [mean]
        assert state["small.w"].tolist() == [mean]


@pytest.mark.parametrize("method", [fedmrl, fml, fedkd, fedapen])
def test_unusable_small_models_are_refused_before_training(method):
    method.METHOD.check(plan(method.Options()))
    with pytest.raises(UserError, match="unknown model 'small-cmm'"):
        method.METHOD.check(plan(method.Options(small_model="small-cmm")))
    with pytest.raises(UserError, match="model cnn4 cannot take images of 1x8x8"):
        method.METHOD.check(plan(method.Options(small_model="cnn4")))
    batch_norm = method.Options(small_model="resnet18")
    method.METHOD.check(plan(batch_norm, shape=(3, 32, 32)))
    with pytest.raises(UserError, match=r"client 1 holds one training image.*pass option={'small_model': 'small-cnn'}"):
        method.METHOD.check(plan(batch_norm, shape=(3, 32, 32), sizes=(9, 1, 9)))


def test_batch_norm_statistics_of_the_small_model_stay_with_the_client():
    world = World("fml", {"small_model": "resnet18"}, batch_size=4)
    _, _, states, uploads = played(world, 1)
    name = "small.extractor.bn1.running_mean"
    assert not torch.equal(states[0][name], torch.zeros_like(states[0][name]))
    assert not any(
        "running" in entry or "batches" in entry for _, u in uploads for entry in get_payload(u, SmallModel).state
    )


# ---------------------------------------------------------------- mutual learning


def test_divergence_is_kl_from_teacher_to_student():
    student, teacher = torch.tensor([[0.0, 0.0], [0.0, 0.0]]), torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])
    by_hand = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert float(divergence(student, teacher)) == pytest.approx(by_hand / 2, abs=1e-6)
    assert float(divergence(student, teacher, "mean")) == pytest.approx(by_hand / 4, abs=1e-6)
    assert float(divergence(teacher, teacher)) == pytest.approx(0, abs=1e-7)


def test_gradients_are_clipped_model_by_model():
    first, second = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    # Gradients (30, 40) of norm 50, and (3, 4) of norm 5.
    loss = first(torch.tensor([30.0, 40.0])).sum() + second(torch.tensor([3.0, 4.0])).sum()
    value = clip_each(loss, (first, second), 10.0)
    value.backward()
    expect_same(value.detach(), loss.detach())
    expect_close(first.weight.grad, torch.tensor([[6.0, 8.0]]))
    expect_close(second.weight.grad, torch.tensor([[3.0, 4.0]]))


def test_clipped_gradients_scale_with_what_is_made_of_the_loss():
    layer = nn.Linear(2, 1, bias=False)
    (3 * clip_each(layer(torch.tensor([30.0, 40.0])).sum(), (layer,), 10.0)).backward()
    expect_close(layer.weight.grad, torch.tensor([[18.0, 24.0]]))


def test_a_model_that_the_loss_leaves_out_gets_no_gradient():
    used, unused = nn.Linear(2, 1), nn.Linear(2, 1)
    clip_each(used(torch.ones(2)).sum(), (used, unused), 1.0).backward()
    expect_same(unused.weight.grad, torch.zeros(1, 2))


# ---------------------------------------------------------------- FML


def test_fml_loss_by_hand():
    private, shared = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])
    labels = torch.tensor([0])
    to_private = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    to_shared = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    cross_private, cross_shared = -math.log(0.75), -math.log(0.5)
    options = fml.Options(alpha=0.2, beta=0.7)
    expected = 0.2 * cross_private + 0.8 * to_private + 0.7 * cross_shared + 0.3 * to_shared
    assert float(fml.mutual_loss(private, shared, labels, options)) == pytest.approx(expected, abs=1e-6)
    parity = fml.Options(alpha=0.2, beta=0.7, parity=True)
    expected = 0.2 * cross_private + 0.4 * to_private + 0.7 * cross_shared + 0.15 * to_shared
    assert float(fml.mutual_loss(private, shared, labels, parity)) == pytest.approx(expected, abs=1e-6)


def test_fml_teachers_are_constant_unless_parity_is_asked_for():
    torch.manual_seed(0)
    logits, labels = torch.randn(2, 3, 4), torch.tensor([0, 1, 3])
    for parity in (False, True):
        private, shared = logits.clone().requires_grad_().unbind()
        options = fml.Options(alpha=1.0, beta=0.0, parity=parity)  # only the shared model is taught
        (slope,) = torch.autograd.grad(fml.mutual_loss(private, shared, labels, options), private)
        (alone,) = torch.autograd.grad(cross_entropy(private, labels), private)
        assert torch.allclose(slope, alone, atol=1e-7) is not parity


def test_fml_without_mutual_terms_is_local_training():
    alone, mutual = World("local"), World("fml", {"alpha": 1.0, "beta": 1.0, "small_model": "small-mlp"})
    for one, other in zip(played(alone, 3)[2], played(mutual, 3)[2], strict=True):
        assert same(inner(one, "model"), inner(other, "model"))


def test_fml_predicts_with_the_private_model_alone():
    world = World("fml")
    _, broadcast, states, _ = played(world)
    assert world.method.apply_broadcast(world.setups[0], states[0], broadcast) is states[0]
    other = states[0] | {name: value + 1 for name, value in states[0].items() if name.startswith("small.")}
    images = torch.rand(3, *SHAPE)
    predict = world.method.predict
    expect_same(predict(world.setups[0], states[0], images), predict(world.setups[0], other, images))


# ---------------------------------------------------------------- FedMRL


def test_fedmrl_loss_by_hand():
    world = World("fedmrl", {"small_width": 3, "small_weight": 0.5, "private_weight": 2.0})
    _, _, states = world.start()
    setup, state = world.setups[1], states[1]
    fusion = fedmrl.load(setup, state)
    images, labels = torch.rand(4, *SHAPE), torch.tensor([0, 1, 2, 3])
    both = torch.cat([fusion.small.represent(images), fusion.model.represent(images)], 1)
    assert both.shape == (4, 3 + WIDTH)
    z = both @ state["projector.weight"].T + state["projector.bias"]
    assert z.shape == (4, WIDTH)
    coarse = z[:, :3] @ state["small.head.weight"].T + state["small.head.bias"]
    fine = z @ state["model.head.weight"].T + state["model.head.bias"]
    expected = 0.5 * cross_entropy(coarse, labels) + 2 * cross_entropy(fine, labels)
    expect_close(fedmrl.nested_loss(fusion, images, labels, world.options), expected, atol=1e-6)
    expect_close(world.method.predict(setup, state, images), fine, atol=1e-5)


def test_fedmrl_keeps_its_projector_between_rounds_and_uses_it():
    world = World("fedmrl")
    server, broadcast, first = world.start()
    server, broadcast, second, _ = world.round(1, server, broadcast, first)
    assert not torch.equal(first[0]["projector.weight"], second[0]["projector.weight"])
    received = world.method.apply_broadcast(world.setups[0], second[0], broadcast)
    expect_same(received["projector.weight"], second[0]["projector.weight"])
    # The next round starts from it: with another projector the same step ends elsewhere.
    other = copies(second[0]) | {"projector.weight": first[0]["projector.weight"]}
    step = [
        world.method.client_step(world.setups[0], state, broadcast, generator(0, "step"))[0]
        for state in (second[0], other)
    ]
    assert not torch.equal(step[0]["model.head.weight"], step[1]["model.head.weight"])
    images = torch.rand(3, *SHAPE)
    scores = [world.method.predict(world.setups[0], state, images) for state in (second[0], other)]
    assert not torch.equal(*scores)


def test_fedmrl_drops_the_small_head_at_inference_but_not_the_small_extractor():
    world = World("fedmrl")
    _, _, states, _ = played(world)
    images = torch.rand(3, *SHAPE)

    def scores(changed):
        state = states[0] | {name: value + 0.1 for name, value in states[0].items() if name.startswith(changed)}
        return world.method.predict(world.setups[0], state, images)

    expect_same(scores("small.head."), scores("nothing"))
    assert not torch.equal(scores("small.extractor."), scores("nothing"))


def test_fedmrl_trains_all_three_parts():
    world = World("fedmrl")
    _, broadcast, before = world.start()
    after, upload = world.method.client_step(world.setups[1], before[1], broadcast, generator(0))
    for name in ("model.head.weight", "small.head.weight", "small.extractor.0.weight", "projector.bias"):
        assert not torch.equal(before[1][name], after[name])
    assert same(inner(after, "small"), dict(get_payload(upload, SmallModel).state))


def test_fedmrl_refuses_a_small_representation_that_is_wider_than_the_private_one():
    fedmrl.METHOD.check(plan(fedmrl.Options(small_width=WIDTH)))
    with pytest.raises(
        UserError, match=r"small_width is 17.*pass option={'small_width': 16} or less, or a larger width"
    ):
        fedmrl.METHOD.check(plan(fedmrl.Options(small_width=17)))


@pytest.mark.parametrize(
    ("shape", "classes", "scalars"),
    [((3, 32, 32), 10, 874_698), ((3, 32, 32), 100, 886_308), ((3, 64, 64), 200, 5_617_800)],
)
def test_fedmrls_communication_is_that_of_table_11_of_fedre(shape, classes, scalars):
    blueprint = Blueprint("resnet18", shape, classes, 512)
    facts = FederationSizes(10, classes, 512, fedmrl.Options(small_model="cnn4"), blueprint=blueprint)
    upload, _, broadcast = message_sizes(fedmrl.METHOD, facts)
    assert (upload.scalars, broadcast.scalars) == (10 * scalars, 10 * scalars)


# ---------------------------------------------------------------- FedKD


def hand_case():
    features = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    logits = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])
    weight = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # W r_s = (2, 0); squared distance to r_m 1, mean over two 0.5
    return (features[0], logits[0]), (features[1], logits[1]), weight, torch.tensor([0])


def test_fedkd_loss_by_hand():
    mentor, mentee, weight, labels = hand_case()
    alone = -math.log(0.75) - math.log(0.5)
    divergences = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    divergences += 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    loss = fedkd.distillation_loss(mentor, mentee, weight, labels, parity=False)
    assert float(loss) == pytest.approx(alone + (divergences + 2 * 0.5) / alone, abs=1e-6)
    loss = fedkd.distillation_loss(mentor, mentee, weight, labels, parity=True)
    assert float(loss) == pytest.approx(alone + (divergences / 2 + 2 * 0.5) / alone, abs=1e-6)


def test_fedkd_holds_teachers_constant_unless_parity_is_asked_for():
    for parity in (False, True):
        mentor, mentee, weight, labels = hand_case()
        inputs = [value.clone().requires_grad_() for value in (*mentor, *mentee, weight)]
        loss = fedkd.distillation_loss(tuple(inputs[:2]), tuple(inputs[2:4]), inputs[4], labels, parity=parity)
        slopes = torch.autograd.grad(loss, inputs)
        alone = -math.log(0.75) - math.log(0.5)
        # d MSE / d r_m = (r_m - W r_s) = (-1, 0) with two entries; both losses push it only in parity.
        once = torch.tensor([[-1.0, 0.0]]) / alone
        expect_close(slopes[0], 2 * once if parity else once, atol=1e-6)
        expect_close(slopes[4], torch.tensor([[0.0, 2.0], [0.0, 0.0]]) / alone * (2 if parity else 1), atol=1e-6)
        # d CE / d z + d KL(p_s || p_m) / d z over D, with p_m - y and p_m - p_s.
        constant = torch.tensor([[-0.25, 0.25]]) + torch.tensor([[0.25, -0.25]]) / alone
        assert torch.allclose(slopes[1], constant, atol=1e-6) is not parity


def test_fedkd_survives_a_client_that_fits_its_data_perfectly():
    logits = torch.tensor([[200.0, 0.0]], requires_grad=True)
    features = torch.tensor([[1.0, 2.0]])
    loss = fedkd.distillation_loss(
        (features, logits), (features, logits), torch.eye(2), torch.tensor([0]), parity=False
    )
    assert not loss.detach().any()
    assert torch.autograd.grad(loss, logits)[0].isfinite().all()


def test_fedkds_share_of_energy_grows_by_the_published_schedule():
    options = fedkd.Options()
    shares = [fedkd.energy_of_round(index, 10, options) for index in (0, 1, 4, 9, 10)]
    assert shares == pytest.approx([0.95, 0.956, 0.965, 0.98, 0.98])
    world = World("fedkd")  # 5 rounds planned
    server, broadcast, states = world.start()
    seen = []
    for number in range(1, 6):
        seen.append(float(get_payload(broadcast, Energy).share))
        server, broadcast, states, _ = world.round(number, server, broadcast, states)
    assert seen == pytest.approx([0.95, 0.962, 0.968, 0.974, 0.98])


def test_fedkd_clients_train_the_recovered_mentee_and_upload_it_compressed():
    world = World("fedkd", {"energy_start": 0.01}, max_steps=1, learning_rate=1e-6)
    server, broadcast, states = world.start()
    _, _, _, uploads = world.round(1, server, broadcast, states)
    start = recover(get_payload(broadcast, LowRankModel).factors)
    for _, upload in uploads:
        factors = get_payload(upload, LowRankModel).factors
        found = recover(factors)
        assert sum(value.numel() for value in factors.values()) < sum(value.numel() for value in found.values())
        assert all(torch.allclose(found[name], value, atol=1e-4) for name, value in start.items())


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


def test_fedkds_communication_needs_the_size_of_a_compressed_model():
    with pytest.raises(UserError, match="compressed_scalars"):
        message_sizes(fedkd.METHOD, FederationSizes(10, 10, 512))
    counts = count(message_sizes(fedkd.METHOD, FederationSizes(10, 10, 512, compressed_scalars=337_428)))
    assert counts["paper"].upload_scalars == counts["paper"].broadcast_scalars == 3_374_280
    assert counts["full"].broadcast_scalars == 3_374_290


# ---------------------------------------------------------------- FedAPEN


def test_fedapen_loss_by_hand():
    private, shared = torch.tensor([[math.log(3), 0.0]]), torch.tensor([[0.0, 0.0]])
    to_private = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    to_shared = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    mixed = math.log(1 + 3**-0.25)  # w P = (log 3 / 4, 0)
    expected = -math.log(0.75) + to_private - math.log(0.5) + to_shared + 2 * mixed
    loss = fedapen.mutual_loss(private, shared, torch.tensor([0]), torch.tensor([0.25]))
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_fedapen_holds_the_other_model_constant():
    torch.manual_seed(0)
    private, shared = torch.randn(2, 3, 4).unbind()
    labels, weight = torch.tensor([0, 1, 3]), torch.tensor([0.3])
    private.requires_grad_()
    (slope,) = torch.autograd.grad(fedapen.mutual_loss(private, shared, labels, weight), private)
    truth, p, s = torch.eye(4)[labels], private.softmax(1), shared.softmax(1)
    mixed = (0.3 * private + 0.7 * shared).softmax(1)
    expect_close(slope, ((p - truth) + (p - s) + 0.3 * (mixed - truth)) / 3, atol=1e-6)


def test_fedapens_weight_descends_the_cross_entropy_of_the_mixture():
    torch.manual_seed(0)
    private, shared, labels = torch.randn(5, 4), torch.randn(5, 4), torch.tensor([0, 1, 3, 2, 2])
    options = fedapen.Options(set_learning_rate=0.1, set_epochs=1)
    weight = torch.tensor([0.5], requires_grad=True)
    loss = cross_entropy(fedapen.mix(private, shared, weight), labels)
    (slope,) = torch.autograd.grad(loss, weight)
    learned = fedapen.learn_weight(torch.tensor([0.5]), private, shared, labels, options, 5)
    expect_close(learned, 0.5 - 0.1 * slope, atol=1e-6)
    first = fedapen.learn_weight(torch.tensor([0.5]), private[:3], shared[:3], labels[:3], options, 3)
    both = fedapen.learn_weight(first, private[3:], shared[3:], labels[3:], options, 3)
    expect_close(fedapen.learn_weight(torch.tensor([0.5]), private, shared, labels, options, 3), both)


def test_fedapens_weight_stays_between_zero_and_one():
    right, wrong = torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 9.0]])
    options = fedapen.Options(set_learning_rate=10)
    for private, shared, end in ((right, wrong, 1.0), (wrong, right, 0.0)):
        learned = fedapen.learn_weight(torch.tensor([0.5]), private, shared, torch.tensor([0]), options, 1)
        assert learned.tolist() == [end]


def test_fedapen_learns_the_weight_on_its_set_after_aggregation():
    world = World("fedapen", {"set_learning_rate": 1.0, "set_share": 0.5})
    server, broadcast, states = world.start()
    setup = world.setups[0]
    # Nothing is learned from untrained models.
    assert world.method.apply_broadcast(setup, states[0], broadcast)["ensemble.weight"].tolist() == [0.5]
    _, broadcast, states, _ = world.round(1, server, broadcast, states)
    assert states[0]["ensemble.weight"].tolist() == [0.5]
    received = world.method.apply_broadcast(setup, states[0], broadcast)
    assert same(inner(received, "small"), dict(get_payload(broadcast, SmallModel).state))
    chosen = states[0]["ensemble.set"]
    assert len(chosen) == round(0.5 * len(setup.train)) == len(chosen.unique())
    logits = [classify(model, setup.train.images[chosen]) for model in fedapen.load(setup, received)]
    expected = fedapen.learn_weight(
        torch.tensor([0.5]), *logits, setup.train.labels[chosen], world.options, setup.training.batch_size
    )
    expect_same(received["ensemble.weight"], expected)
    assert expected.tolist() != [0.5]
    images = torch.rand(4, *SHAPE)
    private, shared = (classify(model, images) for model in fedapen.load(setup, received))
    w = float(expected)
    expect_close(world.method.predict(setup, received, images), w * private + (1 - w) * shared, atol=1e-6)
    # The next training mixes by the learned weight, and keeps it.
    after, _ = world.method.client_step(setup, states[0], broadcast, generator(0))
    expect_same(after["ensemble.weight"], expected)


def test_fedapen_with_equal_weights_never_learns_them():
    for mixture, stays in (("equal", True), ("learned", False)):
        world = World("fedapen", {"mixture": mixture})
        _, broadcast, states, _ = played(world)
        received = world.method.apply_broadcast(world.setups[0], states[0], broadcast)
        assert all((state["ensemble.weight"].tolist() == [0.5]) is stays for state in (states[0], received))


def test_fedapens_set_holds_at_least_one_image():
    _, _, states = World("fedapen").start()
    assert [len(state["ensemble.set"]) for state in states] == [1, 1, 1]
