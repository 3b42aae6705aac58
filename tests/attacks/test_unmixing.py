"""Entangled uploads of one round or many: exact where the algebra says so, the share of the prior told from the upload's."""

import pytest
import torch
from compare import expect_close

from fedpriv.algebra.entanglement import MECHANISMS, entangle, sample_weights
from fedpriv.attacks.features.base import as_uploads
from fedpriv.attacks.features.unmixing import (
    PriorUnmixing,
    UnmixedInversion,
    posterior_mean,
    prior_of_images,
    prior_of_others,
)
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.scoring.vectors import identify_features
from fedpriv.sources.shuffled import shuffle
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import Classifier, Entangled, Prototypes, get_payload

CPU = torch.device("cpu")
N_CLASSES, WIDTH = 5, 12
PER_CLASS = 6


def shared(seed=0):
    """Class means that clients' prototypes scatter around; all have a large part in common, as behind a ReLU."""
    return torch.randn(N_CLASSES, WIDTH, generator=torch.Generator().manual_seed(seed)) + 3


def client_features(client, spread=0.3, seed=0):
    """Representations of a client's images, six of each class, and their labels."""
    rng = torch.Generator().manual_seed(100 * seed + client + 1)
    own = shared(seed) + spread * torch.randn(N_CLASSES, WIDTH, generator=rng)
    labels = torch.arange(N_CLASSES).repeat_interleave(PER_CLASS)
    return own[labels] + 0.1 * torch.randn(len(labels), WIDTH, generator=rng), labels


def upload_of(client, mechanism, round_, *, fixed=False, seed=0):
    features, labels = client_features(client, seed=seed)
    rng = torch.Generator().manual_seed(1000 * client + (0 if fixed else round_))
    return Entangled(*entangle(features, labels, sample_weights(labels, mechanism, rng), N_CLASSES))


def seen(mechanism, n_clients=6, rounds=1, *, fixed=False, broadcast=()):
    return tuple(
        Observation(round_, client, (upload_of(client, mechanism, round_, fixed=fixed),), broadcast)
        for round_ in range(1, rounds + 1)
        for client in range(n_clients)
    )


def prototypes_of(client):
    features, labels = client_features(client)
    return torch.stack([features[labels == label].mean(0) for label in range(N_CLASSES)])


def targets_of(observation):
    held = (get_payload(observation.upload, Entangled).label_encoding.abs() > 0).nonzero().squeeze(1).tolist()
    return tuple(TargetId(observation.round, observation.client, place, label) for place, label in enumerate(held))


def knowledge_of(n_clients=6, **rest):
    # One pixel a coordinate: the extractor is the identity, so that features can be compared with images too.
    extractors = {client: lambda images: images.flatten(1)[:, :WIDTH] for client in range(n_clients)}
    return Knowledge(ThreatModel(rounds_seen=2), (1, 4, 4), N_CLASSES, extractors=extractors, **rest)


def recovered(attack, observations, client, **rest):
    newest = next(o for o in reversed(observations) if o.client == client)
    targets = targets_of(newest)
    found = attack(observations, knowledge_of(**rest), targets, seed=0, device=CPU)
    truth = torch.stack([prototypes_of(client)[target.label] for target in targets])
    return found.features, truth


def sent(observations, client):
    """The upload itself as the guess of each of its prototypes."""
    newest = next(o for o in reversed(observations) if o.client == client)
    return get_payload(newest.upload, Entangled).feature.expand(len(targets_of(newest)), -1)


def unmixed(observations, client):
    """What many rounds tell, without head or images, and of which classes."""
    found = UnmixedInversion().unmixed(observations, client, knowledge_of())
    return found.prototypes, found.classes


def error(found, truth):
    return float(((found - truth).norm(dim=1) / truth.norm(dim=1)).median())


# ---------------------------------------------------------------- algebra


def test_the_posterior_by_hand():
    # r = 0.75 p0 + 0.25 p1 = 10; prior (4, 4): surprise 6, gain w / (9/16 + 1/16) = (1.2, 0.4).
    found = posterior_mean(torch.tensor([10.0]), torch.tensor([0.75, 0.25]), torch.full((2, 1), 4.0))
    torch.testing.assert_close(found, torch.tensor([[11.2], [6.4]]))


def test_the_prior_of_others_learns_the_shared_part():
    observations = seen("RAP", n_clients=40)
    uploads = [get_payload(o.upload, Entangled) for o in observations]
    features, weights = torch.stack([u.feature for u in uploads]), torch.stack([u.label_encoding for u in uploads])
    flat = features.mean(0).expand(N_CLASSES, -1)
    assert error(prior_of_others(features, weights), shared()) < 0.5 * error(flat, shared())


def test_a_classifier_that_points_at_the_prototypes_helps_few_uploads():
    uploads = [get_payload(o.upload, Entangled) for o in seen("RAP", n_clients=4)]
    features, weights = torch.stack([u.feature for u in uploads]), torch.stack([u.label_encoding for u in uploads])
    rows = 0.2 * (shared() - shared().mean(0))
    assert error(prior_of_others(features, weights, rows), shared()) < 0.7 * error(
        prior_of_others(features, weights), shared()
    )


def test_class_means_of_own_images_by_hand():
    features = torch.tensor([[1.0], [3.0], [8.0]])
    found = prior_of_images(features, torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(found, torch.tensor([[2.0], [4.0], [8.0]]))


# ---------------------------------------------------------------- attacks, over all mechanisms


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_rungs_in_order_for_every_mechanism(mechanism):
    """The upload itself, prior and many rounds on one client; what each can know follows from the mechanism."""
    observations = seen(mechanism, rounds=20)
    prior, truth = recovered(PriorUnmixing(iterations=2), observations, 0)
    label = sent(observations, 0)
    prototypes, classes = unmixed(observations, 0)
    held = [target.label for target in targets_of(observations[-6])]
    rows = prototypes[[classes.tolist().index(one) for one in held]]
    if mechanism == "RSP":  # one class's prototype, as it is
        assert max(error(label, truth), error(prior, truth), error(rows, truth)) < 1e-4
    elif mechanism == "RSR":  # one image's representation: its class's prototype within the spread
        assert max(error(label, truth), error(prior, truth), error(rows, truth)) < 0.1
    else:
        if mechanism in ("RAP", "RAR"):
            # That the prior helps needs many others; test_a_prior_of_many_others_beats_the_upload_itself asks for it.
            assert error(rows, truth) < 0.5 * error(prior, truth)
        else:
            # VAR and VAP give every class the weight 1/C, to all clients alike: others' uploads say nothing of one class
            # over another, q_c = q, and q + (1/C) / (C/C^2) (r - q) = r, which is the upload itself. The solution of
            # the ridge is of order ten float64 roundings, the sums after it of order ten float32 ones.
            expect_close(prior, label, rtol=0, atol=50 * torch.finfo().eps * float(label.abs().max()))
            # The same equation in every round.
            assert error(rows, truth) > 0.8 * error(label, truth)


def test_fixed_weights_leave_many_rounds_at_chance_but_not_the_prior():
    hits = {"resampled": [], "fixed": [], "prior": []}
    for fixed in (False, True):
        observations = seen("RAP", rounds=20, fixed=fixed)
        for client in range(6):
            prototypes, _ = unmixed(observations, client)
            found = identify_features(prototypes, prototypes_of(client), [client] * N_CLASSES)[0]
            hits["fixed" if fixed else "resampled"] += found
            if fixed:
                guess, truth = recovered(PriorUnmixing(iterations=1), observations, client)
                hits["prior"] += identify_features(guess, truth, [client] * N_CLASSES)[0]
    rates = {name: sum(values) / len(values) for name, values in hits.items()}
    assert rates["resampled"] == 1.0
    assert rates["fixed"] < 2 / N_CLASSES
    assert rates["prior"] > 0.6


def test_negative_control_another_clients_upload_under_the_own_weights_misleads():
    observations = seen("RAP")
    shuffled = shuffle(observations)
    own_errors, errors, own_hits, hits = [], [], 0, 0
    for client in range(6):
        own, truth = recovered(PriorUnmixing(iterations=1), observations, client)
        # In the prior the client's own vector, now under another client's weights, would teach what is to be found.
        mine = get_payload(observations[client].upload, Entangled).feature
        others = tuple(o for o in shuffled if not torch.equal(get_payload(o.upload, Entangled).feature, mine))
        assert len(others) == 5
        other, _ = recovered(PriorUnmixing(iterations=1), others, client)
        own_errors.append(error(own, truth))
        errors.append(error(other, truth))
        own_hits += sum(identify_features(own, truth, [client] * N_CLASSES)[0])
        hits += sum(identify_features(other, truth, [client] * N_CLASSES)[0])
    # Clients are alike here, so another's vector is off by what sets clients apart, no more: 0.33 against 0.20.
    assert all(other > own for own, other in zip(own_errors, errors, strict=True))
    assert sum(errors) > 1.4 * sum(own_errors)
    # Of 30 prototypes 6 would be nearest to their own by chance.
    assert own_hits >= 24
    assert hits <= 10


def test_own_images_make_the_prior_where_they_are_granted():
    images = torch.rand(30, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(30) % N_CLASSES
    knowledge = knowledge_of(public_images=images, public_labels=labels)
    observations, target = seen("RAP"), TargetId(1, 0, 0, 0)
    found = PriorUnmixing().prior(observations, target, knowledge)
    torch.testing.assert_close(found[2], images[labels == 2].flatten(1)[:, :WIDTH].mean(0))
    assert not torch.allclose(found, PriorUnmixing().prior(observations, target, knowledge_of()))


def test_the_broadcast_classifier_is_used_and_the_own_upload_is_not():
    state = {"weight": 5 * (shared() - shared().mean(0)), "bias": torch.zeros(N_CLASSES)}
    observations, target = seen("RAP", broadcast=(Classifier(state),)), TargetId(1, 0, 0, 0)
    plain = PriorUnmixing().prior(seen("RAP"), target, knowledge_of())
    found = PriorUnmixing().prior(observations, target, knowledge_of())
    assert not torch.allclose(plain, found)
    changed = Observation(1, 0, (Entangled(torch.full((WIDTH,), 99.0), torch.full((N_CLASSES,), 0.2)),), ())
    torch.testing.assert_close(PriorUnmixing().prior((changed, *seen("RAP")[1:]), target, knowledge_of()), plain)


def test_what_is_missing_is_named():
    observations = seen("RSP", n_clients=2)
    encoding = get_payload(observations[0].upload, Entangled).label_encoding
    absent = TargetId(1, 0, 0, int((encoding == 0).nonzero()[0]))
    with pytest.raises(UserError, match="no weight in round 1"):
        PriorUnmixing()(observations, knowledge_of(), (absent,), seed=0, device=CPU)
    with pytest.raises(UserError, match="no other client uploaded"):
        PriorUnmixing()(observations[:1], knowledge_of(), targets_of(observations[0]), seed=0, device=CPU)


def test_found_vectors_keep_their_places():
    targets = (TargetId(4, 1, 2), TargetId(4, 0, 0), TargetId(4, 1, 0))
    made = as_uploads(torch.tensor([[1.0], [2.0], [3.0]]), targets)
    rows = {(o.round, o.client): get_payload(o.upload, Prototypes).features[:, 0].tolist() for o in made}
    assert rows == {(4, 1): [3.0, 0.0, 1.0], (4, 0): [2.0]}


# ---------------------------------------------------------------- many rounds
