"""Inversion of vectors: controls, independence of chunks, what is refused, and vectors that defenses changed."""

import pytest
import torch
from compare import expect_rows_close, expect_same
from gradient_cases import psnr
from torch import nn
from torch.nn import functional

from fedpriv.attacks.inputs.outputs import DISTANCES, direction_distance, nonzero_distance, pruned_distance
from fedpriv.attacks.inputs.targets import OwnExtractors, list_targets, target_feature
from fedpriv.attacks.inversion.vector import DipInversion, PixelInversion
from fedpriv.attacks.observation import Knowledge, Observation, TargetId, ThreatModel
from fedpriv.attacks.priors.spectral import total_variation
from fedpriv.defenses.entangle import one_block
from fedpriv.defenses.entries import clip_rows, pruned
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint
from fedpriv.uploads.kinds import CLASS_MEANS
from fedpriv.uploads.payloads import Entangled, LabelCounts, Prototypes, Representations
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import global_seed

SHAPE = (1, 8, 8)


@pytest.fixture(scope="module")
def extractor(digits):
    """A client's extractor, 64-d, trained on digits to above 95 % of its training images."""
    images, labels = digits[0][:1000], digits[1][:1000]
    with global_seed(0):
        body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 64)
        )
        head = nn.Linear(64, 10)
        optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.2)
        for _ in range(12):
            for batch in torch.randperm(1000).split(25):
                loss = functional.cross_entropy(head(body(images[batch])), labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    assert (head(body(images)).argmax(1) == labels).float().mean() > 0.95
    return body.eval().requires_grad_(False)


def seen_by_server(extractor, images, labels, clients=1):
    parts = zip(images.chunk(clients), labels.chunk(clients), strict=True)
    return tuple(
        Observation(4, client, (Representations(extractor(part), own),), ()) for client, (part, own) in enumerate(parts)
    )


def knowledge_of(extractor, clients=1, **rest):
    return Knowledge(ThreatModel(), SHAPE, 10, extractors=dict.fromkeys(range(clients), extractor), **rest)


def attack_all(attack, observations, knowledge, **rest):
    targets = list_targets(observations, "representation")
    return attack(observations, knowledge, targets, **rest)


@pytest.mark.parametrize("attack", [DipInversion(iterations=400, learning_rate=1e-2), PixelInversion(iterations=400)])
def test_positive_control_representations_give_the_images_away(attack, digits, extractor):
    images, labels = digits[0][:8], digits[1][:8]
    found = attack_all(attack, seen_by_server(extractor, images, labels), knowledge_of(extractor))
    floor = psnr(digits[0][1000:].mean(0, keepdim=True), images).mean()
    assert psnr(found.images[:, 0], images).mean() > floor + 3
    assert found.images.shape == (8, 1, *SHAPE)
    assert found.images.min() >= 0
    assert found.images.max() <= 1
    assert found.labels[:, 0].tolist() == labels.tolist()


def test_negative_control_other_peoples_uploads_give_nothing_away(digits, extractor):
    images, labels = digits[0][:8], digits[1][:8]
    others = seen_by_server(extractor, images.roll(4, 0), labels)
    found = attack_all(DipInversion(iterations=400, learning_rate=1e-2), others, knowledge_of(extractor))
    floor = psnr(digits[0][1000:].mean(0, keepdim=True), images).mean()
    assert psnr(found.images[:, 0], images).mean() < floor


@pytest.mark.parametrize("attack", [DipInversion(iterations=6), PixelInversion(iterations=6)])
def test_results_do_not_depend_on_chunks(attack, digits, extractor):
    observations = seen_by_server(extractor, digits[0][:4], digits[1][:4], clients=2)
    knowledge = knowledge_of(extractor, 2)
    attack = type(attack)(iterations=6, restarts=2)
    whole = attack_all(attack, observations, knowledge)
    for chunk_rows in (1, 3):
        parts = attack_all(attack, observations, knowledge, chunk_rows=chunk_rows)
        # Sums over a group are taken in another order when there are other groups: rounding, and what Adam makes of it.
        expect_rows_close(parts.images, whole.images, 1e-4)
        expect_rows_close((parts.objective / whole.objective).flatten(), torch.ones(whole.objective.numel()), 1e-3)
        expect_rows_close(parts.objective.argmin(1), whole.objective.argmin(1), 0)


def test_targets_are_read_from_the_upload():
    features = torch.arange(6.0).view(3, 2)
    raw = Representations(features, torch.tensor([4, 5, 6]))
    means = Prototypes(features, torch.tensor([1, 0, 7]))
    mixed = Entangled(features[1], torch.tensor([0.1, 0.7, 0.2]))
    counts = LabelCounts(torch.tensor([1, 2, 0]))
    observations = tuple(Observation(2, client, (kind, counts), ()) for client, kind in enumerate((raw, means, mixed)))
    assert [target.label for target in list_targets(observations, "representation")] == [4, 5, 6]
    assert [target.label for target in list_targets(observations, "prototype")] == [1, 0, 7]
    assert list_targets(observations, "entangled") == (TargetId(2, 2, 0, 1),)
    assert list_targets(observations, "label-counts") == tuple(TargetId(2, client) for client in range(3))
    assert list_targets(observations, "model") == ()
    assert target_feature(observations, TargetId(2, 1, 2)).tolist() == [4, 5]
    assert target_feature(observations, TargetId(2, 2)).tolist() == [2, 3]
    for wrong in (TargetId(2, 0, 3), TargetId(2, 3), TargetId(1, 0)):
        with pytest.raises(UserError):
            target_feature(observations, wrong)
    with pytest.raises(UserError, match="holds representation, label-counts; expected one of prototype"):
        target_feature(observations, TargetId(2, 0), CLASS_MEANS)


def test_total_variation_by_hand():
    image = torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]])
    # Roots of 1 + 0.25 and 0.25, then differences down and across the edges that are not there.
    expected = (1.25**0.5 + 0.25**0.5) / 4
    torch.testing.assert_close(total_variation(image), torch.tensor([expected]), rtol=0, atol=1e-3)


def test_distances_by_hand():
    found, wanted = torch.tensor([[3.0, 4.0, 1.0]]), torch.tensor([[6.0, 8.0, 0.0]])
    assert nonzero_distance(found, wanted).item() == pytest.approx(25 / 100)
    # The entry that was dropped may be anything up to 6.
    assert pruned_distance(found, wanted).item() == pytest.approx(25 / 100)
    assert pruned_distance(torch.tensor([[6.0, 8.0, -9.0]]), wanted).item() == pytest.approx(9 / 100)
    cosine = (18 + 32) / (26**0.5 * 10)
    assert direction_distance(found, wanted).item() == pytest.approx(2 - 2 * cosine, abs=1e-6)


@pytest.mark.parametrize("name", sorted(DISTANCES))
def test_the_vector_itself_is_at_distance_zero_and_others_are_not(name):
    draw = torch.Generator().manual_seed(0)
    clean, other = torch.randn(4, 16, generator=draw), torch.randn(4, 16, generator=draw)
    changed = {
        "vector": clean,
        "direction": clip_rows(clean, 0.5),
        "nonzero": one_block(clean, 4, 1),
        "pruned": pruned(clean, 0.3),
    }[name]
    assert float(DISTANCES[name](clean, changed).max()) < 1e-10
    assert float(DISTANCES[name](other, changed).min()) > 0.05
    assert DISTANCES[name](torch.zeros(4, 16), torch.zeros(4, 16)).isfinite().all()


def shown(changed, images, body, attack):
    knowledge = Knowledge(ThreatModel(), (1, 8, 8), len(images), extractors={0: body})
    held = Prototypes(changed, torch.arange(len(images)), torch.ones(len(images), dtype=torch.int64))
    seen = (Observation(0, 0, (held,), ()),)
    found = attack(seen, knowledge, list_targets(seen, "prototype"))
    one = found.images[:, 0].detach()
    return float((one - images).square().mean()), float((one.roll(1, 0) - images).square().mean())


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("direction", lambda rows: clip_rows(rows, 0.1)),
        ("pruned", lambda rows: pruned(rows, 0.5)),
        ("nonzero", lambda rows: one_block(rows, 2, 1)),
    ],
)
@pytest.mark.parametrize("kind", [DipInversion, PixelInversion])
def test_positive_control_what_a_defense_hides_from_one_comparison_another_sees(kind, match, change):
    """Through a linear extractor with an offset, as wide as twice the image."""
    draw = torch.Generator().manual_seed(3)
    images = functional.interpolate(torch.rand(4, 1, 4, 4, generator=draw), scale_factor=2, mode="bilinear")
    matrix, offset = torch.randn(64, 128, generator=draw) / 8, torch.randn(128, generator=draw)

    def body(batch):
        return (batch - 0.5).flatten(1) @ matrix + 0.3 * offset

    fooled, _ = shown(change(body(images)), images, body, kind(iterations=120))
    adapted, shuffled = shown(change(body(images)), images, body, kind(iterations=120, match=match))
    assert adapted < 0.5 * fooled
    assert shuffled > 2 * adapted


def test_each_image_meets_its_own_clients_network():
    shape, names = (1, 28, 28), ["small-cnn", "small-mlp", "small-cnn", "cnn4", "small-cnn", "small-mlp"]
    made = enumerate(Blueprint(name, shape, 10, 16) for name in names)
    models = {k: build_model(blueprint, k).eval().requires_grad_(False).represent for k, blueprint in made}
    owners = torch.tensor([5, 0, 2, 3, 0, 4, 2, 2, 1, 5, 0])
    shown = torch.rand(11, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    call = OwnExtractors(Knowledge(ThreatModel(), shape, 10, extractors=models))
    for _ in range(2):
        found = call(shown, owners)
    expected = torch.stack([models[int(k)](image[None])[0] for k, image in zip(owners, shown, strict=True)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    along = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    (gradient,), (wanted,) = (torch.autograd.grad(values, shown, along) for values in (found, expected))
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-5)
    expect_same(call(shown[:1], owners[1:2]), models[0](shown[:1]))  # other owners
