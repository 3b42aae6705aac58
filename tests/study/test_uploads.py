"""Attacking uploads that were made elsewhere: what is recovered, what is not, and what is refused at the door."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from upload_cases import AUXILIARY, CLASSES, IMAGES, MIXTURE, MODEL, NETWORK, UPLOADS, attack, extractor, smooth

import fedpriv


@pytest.fixture(scope="module")
def recovered():
    return attack(iterations=300)


def test_prototypes_of_single_images_are_recovered_far_above_the_floors(recovered):
    record = recovered.records["pixels"]
    assert record.advantage_db.mean > 8
    assert record.advantage_db.share_3db == 1
    assert {one.why for one in recovered.answers if one.attack} == {"few clients"}
    closer = (recovered.images()[:, 0] - torch.cat(IMAGES)).square().mean((1, 2, 3))
    assert float(closer.max()) < 0.01


def test_shuffled_uploads_reach_the_floor_and_no_more(recovered):
    record = recovered.records["pixels"]
    floors = record.floors
    blind = max(value.psnr_db.mean for name, value in floors.items() if name != "shuffled")
    assert floors["shuffled"].psnr_db.mean < blind + 1
    assert recovered.notices == ()


def test_a_gradient_of_a_small_network_is_inverted():
    image, label = smooth(1, 4), torch.tensor([3])
    gradient = torch.autograd.grad(functional.cross_entropy(MODEL(image), label), MODEL.parameters())
    result = fedpriv.attack_uploads(
        fedpriv.Gradient(gradient),
        model=MODEL,
        images=image,
        labels=label,
        auxiliary=AUXILIARY,
        target="model",
        attacks="dlg",
    )
    assert result.records["dlg"].metrics.psnr_db.mean > 40
    assert "takes two clients" in result.notices[0]
    assert result.records["dlg"].control.passes is None


def test_state_dicts_before_and_after_are_a_gradient():
    image, label = smooth(1, 4), torch.tensor([3])
    after = copy.deepcopy(MODEL)
    optimiser = torch.optim.SGD(after.parameters(), lr=0.5)
    functional.cross_entropy(after(image), label).backward()
    optimiser.step()
    given = {"images": image, "labels": label, "auxiliary": AUXILIARY, "target": "model", "attacks": "dlg"}
    given |= {"model": MODEL, "batch": fedpriv.BatchFacts(1, 0.5, 1)}
    start, end = MODEL.state_dict(), after.state_dict()
    arrays = {name: value.numpy() for name, value in end.items()}
    found = fedpriv.attack_uploads(fedpriv.Update(start, end), **given).records["dlg"]
    assert found.metrics.psnr_db.mean > 40
    for uploads in ([fedpriv.Update(start, arrays)], {0: fedpriv.Update(start, end)}):
        assert fedpriv.attack_uploads(uploads, **given, iterations=1).records["dlg"].n_targets == 1
    for broadcasts in (start, [start], fedpriv.Model(start)):
        result = fedpriv.attack_uploads([arrays], broadcasts=broadcasts, **given, iterations=1)
        assert result.records["dlg"].premise.status == "agrees"


def test_state_dicts_alone_are_refused_with_what_to_pass_instead():
    """Weights after training would otherwise be attacked as if they were gradients, with a confident wrong answer."""
    state = MODEL.state_dict()
    given = {"images": [smooth(1, 4)] * 2, "labels": [torch.tensor([3])] * 2, "auxiliary": AUXILIARY}
    for uploads in (state, (state, state), [state, state], {0: state, 1: state}, [[state, state], [state, state]]):
        alone = {name: one[:1] for name, one in given.items() if name != "auxiliary"} if uploads is state else {}
        for target in ("model", "classifier"):
            with pytest.raises(fedpriv.UserError) as caught:
                fedpriv.attack_uploads(uploads, **{**given, **alone}, model=MODEL, target=target)
            told = str(caught.value)
            assert all(way in told for way in ("Update(before, after)", "Gradient(", "broadcasts="))
            assert told.isprintable()


def test_vectors_by_class_are_prototypes():
    """FedProto's own code keeps a client's prototypes as ``{class: vector}``."""

    def reached(uploads):
        return [(row.client, row.label, row.psnr_db) for row in attack(uploads).records["pixels"].targets]

    tensors = [dict(enumerate(one.features)) for one in UPLOADS]
    arrays = [{np.int64(label): row.numpy() for label, row in one.items()} for one in tensors]
    lists = {client: {label: row.tolist() for label, row in one.items()} for client, one in enumerate(tensors)}
    by_field = [fedpriv.Prototypes(one.features.tolist(), CLASSES.tolist()) for one in UPLOADS]
    rows = [one.features.double().numpy() for one in UPLOADS]
    wanted = reached(UPLOADS)
    for uploads in (tensors, tuple(tensors), arrays, lists, by_field, rows):
        assert reached(uploads) == wanted
    assert reached([tensors, lists]) == reached([UPLOADS, UPLOADS])
    alone = attack(tensors[1], images=IMAGES[1], labels=CLASSES).records["pixels"]
    assert {row.client for row in alone.targets} == {0}


def test_vectors_by_class_are_refused_by_client_and_class():
    good = dict(enumerate(UPLOADS[0].features))
    for wrong, words in (
        ({**good, "3": good[0]}, "client 1: class '3'; expected a whole number"),
        ({**good, 1.5: good[0]}, "client 1: class 1.5; expected a whole number"),
        ({**good, 2: good[0][:5]}, "client 1: class 2: a vector of 5 values, but that of class 0 has 64"),
        ({**good, 2: good[0] / 0}, "client 1: prototype.features holds NaN or infinity"),
        ({**good, 2: good[0][None]}, "client 1: class 2: expected a vector"),
        ({**good, 1 << 80: good[0]}, "client 1: class 1208925819614629174706176; expected a whole number in 0.."),
        ({**good, -1: good[0]}, "client 1: class -1; expected a whole number in 0.."),
    ):
        with pytest.raises(fedpriv.UserError) as caught:
            attack([good, wrong])
        assert words in str(caught.value)
        assert str(caught.value).isprintable()


def test_nothing_that_was_handed_in_is_changed():
    network = extractor().train()
    before = copy.deepcopy(network.state_dict())
    attack(UPLOADS, extractor=[network, network])
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_intervals_go_by_the_groups_that_are_declared(tmp_path):
    images = [smooth(3, seed) for seed in range(10, 16)]
    uploads = [fedpriv.Prototypes(NETWORK(own).detach(), CLASSES) for own in images]
    given = {"images": images, "labels": [CLASSES] * 6, "control": False}
    alone = attack(uploads, **given).records["pixels"]
    result = attack(uploads, **given, groups=["north", "north", "north", "south", "south", "south"])
    together = result.records["pixels"]
    assert (alone.n_clients, together.n_clients) == (6, 2)
    assert dict(together.groups) == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    assert together.advantage_db.per_target == alone.advantage_db.per_target
    assert together.advantage_db.ci95 != alone.advantage_db.ci95
    kept = result.save(tmp_path / "kept")
    page = (kept.path / "report.html").read_text()
    assert "fewer than 5 groups" in page
    assert "Intervals are over 2 groups." in page
    assert "2 clients" not in page
    (again,) = fedpriv.score(kept).values()
    assert again.advantage_db.ci95 == together.advantage_db.ci95
    one = attack(uploads, **given, groups=dict.fromkeys(range(6), 7)).records["pixels"]
    assert one.n_clients == 1


@pytest.fixture(scope="module")
def asked():
    images = [smooth(12, seed) for seed in range(20, 26)]
    labels = [torch.tensor([k % 3, (k + 1) % 3]).repeat_interleave(torch.tensor([9, 3])) for k in range(6)]
    uploads = [fedpriv.Representations(NETWORK(own).detach(), told) for own, told in zip(images, labels, strict=True)]
    auxiliary, classes = smooth(90, 30), torch.arange(90) % 3
    given = {"images": images, "labels": labels, "auxiliary": auxiliary, "auxiliary_labels": classes}
    return lambda **changes: attack(
        uploads,
        **{**given, "target": "representation", "attacks": ["membership", "property"], "iterations": None, **changes},
    )


def test_members_are_told_from_the_clients_held_out_images_or_nothing_is_claimed(asked):
    without = asked(attacks="membership")
    assert without.scores["membership"].nonmembers == "others"
    assert {one.why for one in without.answers if one.endpoint == "membership" and one.attack} == {"no held-out images"}
    own = [(smooth(6, 60 + client), torch.arange(6) % 3) for client in range(6)]
    for given in (own, dict(enumerate(own))):
        found = asked(attacks="membership", held_out=given, auxiliary_labels=None)
        record = found.scores["membership"]
        assert record.nonmembers == "held_out"
        assert record.n_candidates == 2 * record.n_nonmembers > 0
        assert record.baseline.name == "assumed_extractor"
        assert "no held-out images" not in {one.why for one in found.answers}
    known = own[0][0][:1]
    with pytest.raises(fedpriv.UserError, match="held_out: client 0: image 0 is one of the attacker's"):
        asked(attacks="membership", held_out=own, public=known, public_labels=torch.zeros(1).long())


def test_mixtures_of_several_rounds_are_unmixed():
    draw = torch.Generator().manual_seed(5)
    features = [NETWORK(images).detach() for images in IMAGES]
    rounds = []
    for _ in range(6):
        shares = [torch.rand(3, generator=draw).softmax(0) for _ in features]
        rounds.append([fedpriv.Entangled(own @ rows, own) for own, rows in zip(shares, features, strict=True)])
    result = attack(rounds, target="entangled", attacks=["pixels", "unmix"], iterations=200)
    unmixed, blurred = result.records["unmix"], result.records["pixels"]
    assert (unmixed.knowledge.rounds_seen, blurred.knowledge.rounds_seen) == (6, 1)
    assert unmixed.metrics.relative_error.mean < 0.01
    assert unmixed.advantage_db.mean > 3
    assert {row.round for row in (*unmixed.targets, *blurred.targets)} == {6}
    fewer = attack(rounds, target="entangled", attacks="unmix", rounds_seen=2).records["unmix"]
    assert fewer.knowledge.rounds_seen == 2
    assert fewer.metrics.relative_error.mean > 0.01


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": [IMAGES[0] * 255, IMAGES[1]]}, r"images: client 0: values from .*; expected \[0, 1\]: divide by 255"),
        ({"images": IMAGES[0]}, "images: one tensor for 2 uploads"),
        ({"images": [IMAGES[0] / 0, IMAGES[1]]}, "images: client 0: holds NaN or infinity"),
        ({"images": [smooth(2, 9), IMAGES[1]], "labels": [CLASSES[:2], CLASSES]}, "has none of class 2"),
        ({"labels": None}, "labels: client 0: missing"),
        ({"labels": [CLASSES, CLASSES[:2]]}, "labels: client 1: expected 3, one an image"),
        ({"labels": [CLASSES, CLASSES - 1]}, "labels: client 1: classes -1 to 1; expected 0"),
        ({"n_classes": 2}, r"uploads: client 0: prototype.classes: class 2; expected 0..1 \(n_classes=2\)"),
        ({"auxiliary": AUXILIARY[:, :, :4]}, r"auxiliary: images \(1, 4, 8\), expected \(1, 8, 8\)"),
        ({"auxiliary": torch.cat([AUXILIARY, IMAGES[1][:1]])}, "auxiliary: image 60 is one of client 1's"),
        ({"extractor": NETWORK.forward}, "extractor: expected a torch.nn.Module"),
        ({"extractor": NETWORK[:5]}, "extractor: returns vectors of width 256, but those of client 0's upload have 64"),
        ({"extractor": None}, "needs extractor"),
        ({"target": "entangled"}, "uploads: client 0: holds prototype, and no entangled"),
        ({"attacks": "membership", "iterations": None}, "held_out: missing; attack .membership. tells members"),
        ({"held_out": (IMAGES[0], CLASSES)}, "held_out: one pair for 2 clients; expected a list"),
        ({"held_out": [smooth(3, 40), smooth(3, 41)]}, r"held_out: expected .images, labels. for client 0, got Tensor"),
        ({"held_out": [(smooth(3, 40), CLASSES), (IMAGES[1], CLASSES)]}, "held_out: client 1: image 0 is one of client 1's"),
        ({"attacks": "dip", "rounds_seen": 2}, r"rounds_seen=2: 1 round\(s\) were handed in"),
        ({"groups": ["one"]}, "groups: 1 given for 2 uploads"),
        ({"groups": [0.5, 1]}, "groups: 0.5 of client 0; expected a text or a whole number"),
        ({"target": "entangled", "attacks": "unmix", "uploads": [MIXTURE, MIXTURE]},
         r"uploads: of 1 round\(s\), but attack 'unmix' uses 2; expected a list of rounds, each a list of uploads"),
        ({"knowledge": {"attacker_data": "same_domain"}}, "not handed in; pass public=IMAGES and public_labels"),
        ({"seed": -1}, "seed=-1"),
        ({"iteration": 3}, "unknown argument 'iteration'; did you mean 'iterations'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_its_argument(changes, words):
    with pytest.raises(fedpriv.UserError, match=words) as caught:
        attack(**changes)
    assert "\n" not in str(caught.value)


def rough(rows, rng):
    return rows + rows.square().mean().sqrt() * torch.randn(rows.shape, generator=rng)


def defended(**changes):
    """Noisy representations of two clients, attacked by a decoder."""
    images = [smooth(12, 11), smooth(12, 12)]
    labels = [torch.arange(12) % 3] * 2
    draw = torch.Generator().manual_seed(9)
    sent = [
        fedpriv.Representations(rough(NETWORK(own).detach(), draw), known)
        for own, known in zip(images, labels, strict=True)
    ]
    usual = {
        **{"target": "representation", "images": images, "labels": labels, "attacks": "decoder", "iterations": 100},
        **{"public": smooth(200, 13), "public_labels": torch.arange(200) % 3, "control": False},
    }
    return attack(sent, **{**usual, **changes})


def test_attackers_learn_behind_a_defense_that_is_told():
    plain = defended().records["decoder"]
    result = defended(defense="noise:scale=1")
    record, about = result.records["decoder"], json.loads((result.path / "decoder" / "about.json").read_text())
    assert record.metrics.psnr_db.mean > plain.metrics.psnr_db.mean + 2
    assert [one["label"] for one in about["defenses"]] == ["noise scale=1.0"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"defense": "noize"}, "unknown defense 'noize'; did you mean 'noise'"),
        ({"defense": "dp-sgd:noise_multiplier=1"}, "changes nothing of representation uploads"),
        ({"defense": "entangle"}, "would not have sent what client 0 sent in round 1"),
        ({"defense": 5}, "expected a text or a list of texts"),
        ({"attacks": "all-rounds"}, "attack 'all-rounds' uses 2; expected a list of rounds"),
        ({"earlier_extractors": [NETWORK]}, r"^earlier_extractors: 1 for 1 round"),
    ],
)
def test_what_is_no_defense_and_no_earlier_extractor_is_refused(given, told):
    with pytest.raises(fedpriv.UserError, match=told):
        defended(**given)


def test_all_rounds_take_the_extractor_of_each():
    networks = [extractor(seed) for seed in (3, 4)] + [NETWORK]
    rounds = [[fedpriv.Prototypes(one(images).detach(), CLASSES) for images in IMAGES] for one in networks]
    found = attack(rounds, attacks="all-rounds", earlier_extractors=networks[:2], iterations=150)
    alone = attack(attacks="dip", iterations=150)
    record = found.records["all-rounds"]
    assert record.metrics.psnr_db.mean > alone.records["dip"].metrics.psnr_db.mean
    assert record.knowledge.rounds_seen == 3
    with pytest.raises(
        fedpriv.UserError, match="earlier_extractors: missing; attack 'all-rounds' takes the extractor behind"
    ):
        attack(rounds, attacks="all-rounds")
    narrow = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    with pytest.raises(fedpriv.UserError, match=r"^earlier_extractors: returns vectors of width 8"):
        attack(rounds, attacks="all-rounds", earlier_extractors=[NETWORK, narrow])
