"""Evidence of a real run: targets point at what was uploaded, truths at what it was computed from; the two never meet."""

import dataclasses

import pytest
import torch
from compare import expect_close, expect_same
from federations import CPU, small

from fedpriv.algebra.entanglement import MECHANISMS
from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.features.posterior import UnmixedInversion
from fedpriv.attacks.gradients.inverting import InvertingGradients
from fedpriv.attacks.gradients.linear_layer import LinearLayer
from fedpriv.attacks.gradients.matching import Matcher
from fedpriv.attacks.gradients.update import one_hot
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.prepared import init_rng
from fedpriv.federation.states import inner
from fedpriv.methods.fedhenn import prefix
from fedpriv.sources.case import build_case
from fedpriv.sources.run import RunSource, local_steps
from fedpriv.sources.source import shuffle
from fedpriv.uploads.payloads import Entangled, Model, Prototypes, get_payload
from fedpriv.util.errors import UserError

CARD = ThreatModel()


@pytest.fixture(scope="module")
def world(trained):
    def get(method, **options):
        single = {"models": "small-mlp", "training": LocalTraining(learning_rate=0.1, max_steps=1, batch_size=3)}
        more = single if method == "fedavg" else {"models": "small-cnn,small-mlp"}
        return trained(small(method, options=options, per_class=20, clients=3, rounds=4, alpha=1.0, **more))

    return get


@pytest.mark.parametrize(
    ("method", "kind", "options"),
    [
        ("fedallrep", "representation", {}),
        ("fedgh", "prototype", {}),
        *(("fedre", "entangled", {"mechanism": mechanism}) for mechanism in MECHANISMS),
    ],
)
def test_an_upload_is_what_the_granted_extractor_makes_of_its_true_images(method, kind, options, world):
    directory, federation = world(method, **options)
    source = RunSource(directory, federation, kind)
    evidence = build_case(source, CARD, n_targets=7 if kind == "representation" else 100, seed=0)
    classes = sum(len(setup.train.labels.unique()) for setup in federation.clients)
    assert len(evidence.targets) == {"representation": 7, "prototype": classes, "entangled": 3}[kind]
    assert {t.client for t in evidence.targets} == {0, 1, 2}
    for target, truth in zip(evidence.targets, source.truths(evidence.targets, seed=0), strict=True):
        upload = next(o.upload for o in evidence.observations if o.client == target.client)
        row = next(payload for payload in upload if payload.kind == kind).rows()[target.index]
        features = evidence.knowledge.extractors[target.client](truth.members)
        expect_close(truth.weights.float() @ features, row, atol=1e-4 if kind == "entangled" else 1e-5)
        assert kind == "entangled" or set(truth.labels.tolist()) == {target.label}
        assert kind != "representation" or len(truth.members) == 1


def test_classes_of_entangled_uploads_come_in_whole_clients_with_their_true_prototypes(world):
    directory, federation = world("fedre", mechanism="RAP")
    card = dataclasses.replace(CARD, rounds_seen=4)
    evidence = build_case(RunSource(directory, federation, "entangled"), card, UnmixedInversion(), n_targets=12, seed=0)
    found = RunSource(directory, federation, "entangled").truths(evidence.targets, seed=0, unit="class")
    assert len({o.round for o in evidence.observations}) == 4
    for client in {t.client for t in evidence.targets}:
        held = federation.clients[client].train.labels.unique().tolist()
        assert [t.label for t in evidence.targets if t.client == client] == held
    for target, truth in zip(evidence.targets, found, strict=True):
        features = evidence.knowledge.extractors[target.client](truth.members)
        expect_close(features.mean(0), truth.feature, atol=1e-5)


def test_the_truth_of_a_model_upload_is_the_batch_its_step_used(world):
    directory, federation = world("fedavg")
    evidence = build_case(RunSource(directory, federation, "model"), CARD, n_targets=3, seed=0)
    found = RunSource(directory, federation, "model").truths(evidence.targets, seed=0)
    assert evidence.knowledge.batch.steps == 1
    assert evidence.knowledge.batch.batch_size == 3
    for target, truth in zip(evidence.targets, found, strict=True):
        observation = next(o for o in evidence.observations if o.client == target.client)
        model = federation.clients[target.client].model
        before, after = get_payload(observation.broadcast, Model).state, get_payload(observation.upload, Model).state
        with torch.no_grad():
            for name, value in model.named_parameters():
                value.copy_(before[name])
        loss = torch.nn.functional.cross_entropy(model(truth.members), truth.labels)
        slopes = torch.autograd.grad(loss, list(model.parameters()))
        for (name, _), slope in zip(model.named_parameters(), slopes, strict=True):
            expect_close((before[name] - after[name]) / 0.1, slope, atol=1e-4)
        expect_same(evidence.knowledge.labels[(target.round, target.client)], truth.labels)


def test_permuting_moves_what_was_computed_from_images_and_nothing_else():
    def observation(client, value, rows):
        features = torch.full((rows, 2), float(value))
        return Observation(1, client, (Prototypes(features, torch.arange(rows)),), ())

    moved = shuffle((observation(0, 1, 3), observation(1, 2, 2), observation(2, 3, 1)))
    assert moved is not None
    assert [o.client for o in moved] == [0, 1, 2]
    assert [get_payload(o.upload, Prototypes).features[0, 0].item() for o in moved] == [2, 3, 1]
    assert [len(get_payload(o.upload, Prototypes).classes) for o in moved] == [3, 2, 1]
    assert shuffle((observation(0, 1, 3),)) is None
    mixed = shuffle(
        tuple(
            Observation(1, k, (Entangled(torch.full((2,), float(k)), torch.eye(2)[k]),), ()) for k in (0, 1)
        )
    )  # fmt: skip
    assert mixed is not None
    assert get_payload(mixed[0].upload, Entangled).feature.tolist() == [1, 1]
    assert get_payload(mixed[0].upload, Entangled).label_encoding.tolist() == [1, 0]


def test_nothing_that_an_attack_is_handed_holds_the_truth():
    def names(kind):
        return {field.name for field in dataclasses.fields(kind)}

    assert names(Observation) == {"round", "client", "upload", "broadcast", "continued"}
    private = {"train", "test", "members", "truth", "images", "samples"}
    assert not names(Knowledge) & private


# ---------------------------------------------------------------- facts of local steps


@pytest.fixture(scope="module")
def uneven(trained):
    """Return a run whose clients hold different numbers of images and take two epochs of batches of ten."""
    training = LocalTraining(learning_rate=0.05, batch_size=10, epochs=2)
    return trained(small("fedavg", per_class=12, clients=4, rounds=1, models="small-mlp", alpha=0.3, training=training))


@pytest.mark.parametrize("n_targets", [1, 4])
def test_inferred_labels_are_as_many_as_each_client_used(n_targets, uneven):
    directory, federation = uneven
    card = dataclasses.replace(CARD, labels="inferred")
    evidence = build_case(RunSource(directory, federation, "model"), card, n_targets=n_targets, seed=0)
    problem = InvertingGradients(apart=False).read(
        AttackProblem(evidence.observations, evidence.knowledge, evidence.targets)
    )
    used = [len(RunSource(directory, federation, "model").used(1, target.client)) for target in evidence.targets]
    assert list(problem.counts) == used
    assert len(set(used)) == len(used)  # else the test says nothing
    for target in evidence.targets:
        sizes = tuple(len(batch) for batch in local_steps(directory, 1, target.client))
        assert evidence.knowledge.facts_of(target.client).sizes == sizes


def test_the_true_images_take_the_clients_own_steps(uneven):
    evidence = build_case(RunSource(*uneven, "model"), CARD, n_targets=4, seed=0)
    found = RunSource(*uneven, "model").truths(evidence.targets, seed=0)
    problem = InvertingGradients(apart=False).read(
        AttackProblem(evidence.observations, evidence.knowledge, evidence.targets)
    )
    most = problem.labels.shape[1]
    members = torch.stack([truth.members[torch.arange(most) % truth.n_c] for truth in found])
    matcher = Matcher(problem.model, evidence.knowledge.image_shape, problem.facts, CPU)
    matching = matcher.against(problem.steps, problem.counts)
    distance = matching.cosine(members, one_hot(problem.labels, 10), torch.arange(len(found)))
    assert float(distance.max()) < 1e-5


def config(**changes):
    values = {"rounds": 3, "models": "small-mlp", "capture": "all"} | changes
    training = LocalTraining(learning_rate=0.05, max_steps=1, batch_size=1)
    return small("fedhenn", options={"weight": 0.0}, per_class=6, clients=2, public=8, training=training, **values)


@pytest.mark.parametrize("round_", [1, 2, 3])
def test_the_update_begins_where_the_client_began(round_, trained):
    directory, federation = trained(config())
    found = build_case(RunSource(directory, federation, "model"), CARD, n_targets=2, seed=0, round_=round_)
    server, _ = federation.method.start(federation.server, init_rng(directory.config))
    for seen, wrong in zip(found.observations, found.shuffled, strict=True):
        start, before = get_payload(seen.broadcast, Model).state, inner(server, prefix(seen.client))
        assert (seen.continued, seen.broadcast is wrong.broadcast) == (round_ > 1, False)
        if round_ > 1:
            before = get_payload(directory.message(directory.upload_path(round_ - 1, seen.client)), Model).state
        for name, value in before.items():
            expect_same(start[name], value)
    truth = RunSource(directory, federation, "model").truths(found.targets, seed=0)
    result = LinearLayer()(found.observations, found.knowledge, found.targets, seed=0, device=CPU)
    for images, own in zip(result.images, truth, strict=True):
        assert float((images - own.members).square().mean()) < 1e-6


def test_three_parts_of_the_auxiliary_images_share_none_with_one_another_or_the_members(trained):
    settings = {"auxiliary": 0.4, "per_class": 40, "clients": 3, "rounds": 2, "models": "small-mlp", "alpha": 1.0}
    directory, federation = trained(small("fedgh", **settings))
    source = RunSource(directory, federation, "prototype")
    own = federation.attacker.images.flatten(1)
    for truth in source.truths(build_case(source, CARD, n_targets=30, seed=0).targets, seed=0):
        guesses, decoys, members = (part.flatten(1) for part in (truth.pool.guesses, truth.pool.decoys, truth.members))
        for left, right in ((guesses, decoys), (guesses, own), (decoys, own), (members, guesses), (members, decoys)):
            assert not (torch.cdist(left, right) < 1e-6).any()  # digits holds no image twice


def test_different_architectures_are_refused(trained):
    directory, federation = trained(config(models="small-mlp,small-cnn", rounds=1))
    with pytest.raises(UserError, match="models of different architectures"):
        build_case(RunSource(directory, federation, "model"), CARD, n_targets=2, seed=0)
