"""Entangled uploads of one round or many: exact where the algebra says so, the share of the prior told from the upload's."""

import torch

from fedpriv.algebra.entanglement import MECHANISMS, entangle, sample_weights
from fedpriv.attacks.features.base import as_uploads
from fedpriv.attacks.features.posterior import UnmixedInversion, prior_of_images
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.sources.source import shuffle
from fedpriv.uploads.payloads import Entangled, Prototypes, get_payload

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


def sent(observations, client):
    """The upload itself as the guess of each of its prototypes."""
    newest = next(o for o in reversed(observations) if o.client == client)
    return get_payload(newest.upload, Entangled).feature.expand(len(targets_of(newest)), -1)


def unmixed(observations, client):
    """What many rounds tell, without head or images, and of which classes."""
    found, classes = UnmixedInversion().unmixed(observations, client, knowledge_of())
    return found.prototypes, classes


def error(found, truth):
    return float(((found - truth).norm(dim=1) / truth.norm(dim=1)).median())


def test_class_means_of_own_images_by_hand():
    features = torch.tensor([[1.0], [3.0], [8.0]])
    found = prior_of_images(features, torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(found, torch.tensor([[2.0], [4.0], [8.0]]))


def truth_of(observations, client):
    newest = next(o for o in reversed(observations) if o.client == client)
    return torch.stack([prototypes_of(client)[target.label] for target in targets_of(newest)])


def test_many_rounds_tell_what_the_mechanism_allows():
    for mechanism in MECHANISMS:
        observations = seen(mechanism, rounds=20)
        label, truth = sent(observations, 0), truth_of(observations, 0)
        prototypes, classes = unmixed(observations, 0)
        rows = prototypes[[classes.tolist().index(target.label) for target in targets_of(observations[-6])]]
        if mechanism == "RSP":  # one class's prototype, as it is
            assert max(error(label, truth), error(rows, truth)) < 1e-4
        elif mechanism == "RSR":  # one image's representation: its class's prototype within the spread
            assert max(error(label, truth), error(rows, truth)) < 0.1
        elif mechanism in ("RAP", "RAR"):
            assert error(rows, truth) < 0.3 * error(label, truth)
        else:  # the same equation in every round
            assert error(rows, truth) > 0.8 * error(label, truth)


def test_fixed_weights_and_uploads_of_another_client_leave_many_rounds_at_chance():
    rates = {}
    for name in ("resampled", "fixed", "shuffled"):
        observations = seen("RAP", rounds=20, fixed=name == "fixed")
        observations = shuffle(observations) if name == "shuffled" else observations
        hits = []
        for client in range(6):
            prototypes, _ = unmixed(observations, client)
            nearest = torch.cdist(prototypes, prototypes_of(client)).argmin(1)
            hits += (nearest == torch.arange(N_CLASSES)).tolist()
        rates[name] = sum(hits) / len(hits)
    assert rates["resampled"] == 1.0
    assert max(rates["fixed"], rates["shuffled"]) < 2 / N_CLASSES, rates


def test_found_vectors_keep_their_places():
    targets = (TargetId(4, 1, 2), TargetId(4, 0, 0), TargetId(4, 1, 0))
    made = as_uploads(torch.tensor([[1.0], [2.0], [3.0]]), targets)
    rows = {(o.round, o.client): get_payload(o.upload, Prototypes).features[:, 0].tolist() for o in made}
    assert rows == {(4, 1): [3.0, 0.0, 1.0], (4, 0): [2.0]}
