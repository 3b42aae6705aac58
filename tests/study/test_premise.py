"""The premise of attacks on uploads from elsewhere: where true images do not give them, finding nothing says nothing."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from upload_cases import smooth

import fedpriv

CLIENTS, RATE = 6, 0.1
QUICK = {"attacks": "dlg", "iterations": 1, "control": False}
IMAGES = [smooth(4, 40 + client) for client in range(CLIENTS)]
LABELS = [torch.tensor([0, 1, 2, 1 + client % 2]) for client in range(CLIENTS)]
AUXILIARY = smooth(40, 90)


def network(dropout=0.0, seed=3):
    torch.manual_seed(seed)
    parts = nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 3)
    return nn.Sequential(*parts).eval()


def normed(kind=nn.BatchNorm2d):
    torch.manual_seed(4)
    layer = kind(4) if kind is nn.BatchNorm2d else kind(2, 4)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, 1, 1), layer, nn.ReLU(), nn.Flatten(), nn.Linear(256, 3))
    model(smooth(16, 7))  # running statistics of its own
    return model.eval()


def identity(images):
    return images


def updates(model, loader=identity, optimiser=torch.optim.SGD, rate=RATE, size=4, epochs=1, shuffle=False, **options):
    """Return one update a client, trained in the mode that the model is in."""
    made = []
    for client, (images, labels) in enumerate(zip(IMAGES, LABELS, strict=True)):
        copied, draw = copy.deepcopy(model), torch.Generator().manual_seed(client)
        before = copy.deepcopy(copied.state_dict())
        steps = optimiser(copied.parameters(), lr=rate, **options)
        for _ in range(epochs):
            order = torch.randperm(4, generator=draw) if shuffle else torch.arange(4)
            for part in order.split(size):
                steps.zero_grad()
                functional.cross_entropy(copied(loader(images[part])), labels[part]).backward()
                steps.step()
        made.append(fedpriv.Update(before, copied.state_dict()))
    return made


def gradients(model, kinds=(torch.float32,), smoothing=0.0):
    """Return one gradient a client, in each precision in turn."""
    made = []
    for images, labels, kind in zip(IMAGES, LABELS, CLIENTS * kinds, strict=False):
        loss = functional.cross_entropy(model(images), labels, label_smoothing=smoothing)
        made.append(fedpriv.Gradient([value.to(kind) for value in torch.autograd.grad(loss, [*model.parameters()])]))
    return made


def attack(uploads, target="model", images=IMAGES, labels=LABELS, attacks="linear-layer", **settings):
    result = fedpriv.attack_uploads(
        uploads,
        target=target,
        images=images,
        labels=labels,
        auxiliary=AUXILIARY,
        attacks=attacks,
        targets=6,
        **settings,
    )
    return result, next(iter(result.records.values())).premise


def weights(uploads, model, **settings):
    return attack(uploads, model=model, batch=fedpriv.BatchFacts(4, RATE, 1), **settings)


def means(rows, labels):
    classes, counts = labels.unique(return_counts=True)
    return fedpriv.Prototypes(torch.stack([rows[labels == label].mean(0) for label in classes]), classes, counts)


def prototypes(extractor, loader=identity):
    with torch.no_grad():
        return [means(extractor(loader(images)), labels) for images, labels in zip(IMAGES, LABELS, strict=True)]


def rows(uploads, extractor, target="prototype", **settings):
    return attack(uploads, target=target, extractor=extractor, attacks="pixels", iterations=2, **settings)


def other_clients():
    """Yield what clients do that attacks do not assume, with the attack on it."""
    dropping = network(dropout=0.5).train()
    torch.manual_seed(0)

    def loader(images):
        return (images - 0.5) / 0.25

    yield "Adam", weights(updates(network(), optimiser=torch.optim.Adam), network())
    yield "weight decay", weights(updates(network(), weight_decay=0.1), network(), **QUICK)
    yield "loader", weights(updates(network(), loader), network(), **QUICK)
    yield "dropout", weights(updates(dropping), network(dropout=0.5), **QUICK)
    yield "other weights", rows(prototypes(network(seed=5)[:3]), network()[:3])
    yield "loader of prototypes", rows(prototypes(network()[:3], loader), network()[:3])


def test_what_attacks_do_not_assume_is_never_no_leak(tmp_path):
    for name, (result, premise) in other_clients():
        assert (premise.status, premise.n_clients, premise.n_differ) == ("differs", CLIENTS, CLIENTS), name
        assert premise.cosine < 0.99, name
        asked = [one for one in result.answers if one.verdict != "not asked"]
        assert {(one.verdict, one.why) for one in asked} == {("inconclusive", "premise")}, name
        assert "do not give these uploads (cosine" in result.verdict, name
    kept = result.save(tmp_path / "kept")  # the last of them
    for page in ("report.md", "report.html"):
        assert "do not give these uploads (cosine" in (kept.path / page).read_text(), page


def test_weights_in_each_others_places_are_named():
    swapped = [fedpriv.Update(one.after, one.before) for one in updates(network())]
    result, premise = weights(swapped, network(), **QUICK)
    assert (premise.status, premise.cause) == ("differs", "swapped")
    assert "before and after look swapped" in result.verdict
    assert any("before and after look swapped" in line for line in result.notices)


def test_a_little_noise_is_a_usual_cause_and_no_cosine_of_one():
    sent, draw = prototypes(network()[:3]), torch.Generator().manual_seed(2)
    noise = [own.features.std() * torch.randn(own.features.shape, generator=draw) for own in sent]
    noisy = [
        fedpriv.Prototypes(own.features + 0.05 * more, own.classes, own.counts)
        for own, more in zip(sent, noise, strict=True)
    ]
    result, premise = rows(noisy, network()[:3])
    assert premise.status == "differs"
    assert 0.995 < premise.cosine < 1
    assert "cosine 1.00" not in result.verdict
    assert "causes are noise that a defense adds" in result.verdict


def test_a_leak_stands_with_a_warning():
    dropping = network(dropout=0.5)
    torch.manual_seed(0)
    result, premise = weights(updates(copy.deepcopy(dropping).train()), dropping)
    assert premise.status == "differs"
    assert "leak" in {one.verdict for one in result.answers}
    assert "Warning: your images, labels and model do not give" in result.verdict


def test_an_optimiser_other_than_sgd_is_not_what_attacks_assume():
    facts = fedpriv.BatchFacts(4, RATE, 1, optimiser="adam")
    model = network()
    result, premise = attack(updates(model, optimiser=torch.optim.Adam), model=model, batch=facts, **QUICK)
    assert (premise.status, premise.cause) == ("differs", "optimiser")
    assert "clients trained by adam" in result.verdict
    _, premise = attack(gradients(model), model=model, batch=facts, **QUICK)
    assert premise.status == "agrees"  # of a gradient nothing is left to the optimiser
    with pytest.raises(fedpriv.UserError, match="batch: optimiser: "):
        attack(updates(model), model=model, batch=fedpriv.BatchFacts(4, RATE, 1, optimiser=3))


def honest_clients():
    """Yield uploads as attacks assume them, with the attack on each."""
    model = network()
    several = {"images": [torch.cat([own] * 2) for own in IMAGES], "labels": [torch.cat([own] * 2) for own in LABELS]}
    steps = {**several, **QUICK, "model": model, "batch": fedpriv.BatchFacts(2, RATE, 4)}
    yield "one step", weights(updates(model), model, **QUICK)
    yield "several steps", attack(updates(model, size=2, epochs=2), **steps)
    small = {**steps, "batch": fedpriv.BatchFacts(2, RATE / 100, 4)}
    yield "in another order", attack(updates(model, size=2, epochs=2, shuffle=True, rate=RATE / 100), **small)
    kinds = torch.float32, torch.float64, torch.float16, torch.bfloat16
    yield "gradients in every precision", attack(gradients(model, kinds), model=model, **QUICK)
    facts = fedpriv.BatchFacts(4, 1.0, 1, label_smoothing=0.1)
    yield "smoothed labels", attack(gradients(model, smoothing=0.1), model=model, batch=facts, **QUICK)
    yield "batch norm", attack(gradients(normed().train()), model=normed(), **QUICK)
    group = normed(nn.GroupNorm)
    yield "group norm", attack(gradients(group), model=group, **QUICK)
    extractor = normed()[:4]
    yield "prototypes", rows(prototypes(extractor), extractor)
    made = [extractor(own).detach() for own in IMAGES]
    each = [fedpriv.Representations(*pair) for pair in zip(made, LABELS, strict=True)]
    yield "representations", rows(each, extractor, "representation")
    outputs = [normed()(images).detach() for images in IMAGES]
    outputs = [*outputs[:3], *(part.softmax(1) for part in outputs[3:])]
    seen = [means(*pair) for pair in zip(outputs, LABELS, strict=True)]
    sent = [fedpriv.ClassLogits(upload.features, upload.classes) for upload in seen]
    inverted = {"target": "logits", "extractor": extractor, "head": normed()[4], "attacks": "class-inversion"}
    yield "logits, and what softmax makes of them", attack(sent, **inverted, iterations=1, control=False)


def test_what_attacks_assume_agrees():
    for name, (result, premise) in honest_clients():
        least = CLIENTS - (name == "in another order")  # an order may turn a ReLU
        assert (premise.status, premise.n_differ) == ("agrees", 0), (name, premise)
        assert premise.n_clients >= least, (name, premise)
        assert "premise" not in {one.why for one in result.answers}, name


def test_a_defense_explains_a_difference():
    extractor, draw = network()[:3], torch.Generator().manual_seed(1)

    def blurred(features, rng):
        return features + features.square().mean().sqrt() * torch.randn(features.shape, generator=rng)

    sent = [fedpriv.Prototypes(blurred(own.features, draw), own.classes, own.counts) for own in prototypes(extractor)]
    result, premise = rows(sent, extractor, defense="noise:scale=1")
    assert premise.status == "defense"
    assert "premise" not in {one.why for one in result.answers}
