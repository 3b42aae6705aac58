"""Property inference: certain where counts are sent, learned where they are not, chance where nothing is there."""

from pathlib import Path

import numpy as np
import pytest
import torch
from compare import expect_same
from eval_cases import answers
from federations import DIGITS
from sklearn.datasets import load_digits

from fedpriv.attacks.inference.base import InferenceProblem
from fedpriv.attacks.inference.property import (
    LabelDisclosure,
    PropertyInference,
    class_similarity,
    describe,
    kernel_class_scores,
    learn,
)
from fedpriv.attacks.inputs.targets import said
from fedpriv.attacks.inversion.surrogate import ShadowTraining, shadow_clients
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.cli.main import run
from fedpriv.datasets.types import Samples
from fedpriv.eval.inference_case import area
from fedpriv.eval.storage import load_scores
from fedpriv.uploads.payloads import (
    Classifier,
    ClassLogits,
    Entangled,
    Kernel,
    LabelCounts,
    Prototypes,
    PublicImages,
    Representations,
)
from fedpriv.util.errors import UserError

C = 5


def prototype_client(client, *, tell=True, n_classes=C):
    """A client whose prototype lengths follow its counts, or do not."""
    rng = torch.Generator().manual_seed(client)
    counts = torch.randint(1, 60, (n_classes,), generator=rng)
    directions = torch.nn.functional.normalize(torch.randn(n_classes, 8, generator=rng), dim=1)
    lengths = (1 + counts / 20.0) if tell else torch.ones(n_classes)
    upload = (Prototypes(directions * lengths[:, None], torch.arange(n_classes)),)
    return Observation(1, client, upload, ()), counts


def auc_of(clients):
    """Of the majority, each client's classes by what is learned from the others."""
    scores, answers = [], []
    for number in range(len(clients)):
        described = [describe(seen, C)[1] for seen, _ in clients]
        wanted = [PropertyInference().answers(counts, "majority") for _, counts in clients]
        learned = learn(*(torch.cat(rows[:number] + rows[number + 1 :]) for rows in (described, wanted)))
        scores.append(learned(described[number]).log_softmax(0).numpy())
        answers.append(wanted[number].numpy())
    return area(np.concatenate(scores), np.concatenate(answers))


def test_positive_control_lengths_that_follow_counts_give_the_majority_away():
    clients = [prototype_client(client) for client in range(20)]
    assert auc_of(clients) > 0.95


def test_negative_control_lengths_that_do_not_give_nothing_away():
    clients = [prototype_client(client, tell=False) for client in range(40)]
    assert 0.35 < auc_of(clients) < 0.65


def test_counts_and_label_sets_are_read_off():
    attack = PropertyInference()
    counted = (Prototypes(torch.zeros(2, 3), torch.tensor([1, 4]), torch.tensor([3, 9])),)
    for upload in (counted, (LabelCounts(torch.tensor([0, 3, 0, 0, 9])),)):
        assert attack.read_off(said([upload]), C).tolist() == [0, 0, 0, 0, 1]
    named = (Prototypes(torch.zeros(2, 3), torch.tensor([1, 4])),)
    assert PropertyInference(question="holds").read_off(said([named]), C).tolist() == [0, 1, 0, 0, 1]
    assert attack.read_off(said([named]), C) is None
    raw = (Representations(torch.zeros(3, 2), torch.tensor([0, 2, 2])),)
    assert attack.read_off(said([raw]), C).tolist() == [0, 0, 1, 0, 0]


def test_what_was_said_once_stays_said():
    head = (state(torch.zeros(C, 2), torch.zeros(C)),)
    counts = (*head, LabelCounts(torch.tensor([0, 3, 0, 0, 9])))
    assert said([counts, head, head]) == said([counts])
    assert said([counts, head]).counts == {1: 3, 4: 9}
    assert said([head]).classes is None
    # A mixture of one class a round names another in every round; prototypes name what is held now.
    mixtures = [(Entangled(torch.zeros(2), torch.eye(C)[label]),) for label in (3, 0, 3)]
    assert said(mixtures).classes == (0, 3)
    held = [(Prototypes(torch.zeros(len(rows), 2), torch.tensor(rows)),) for rows in ([0, 1], [1, 2])]
    assert said(held).classes == (1, 2)
    # Counts settle the classes, whatever a mixture gave weight to.
    assert said([counts, mixtures[0]]).classes == (1, 4)


def state(weight, bias):
    return Classifier({"weight": weight, "bias": bias})


def test_every_kind_is_described_by_the_same_numbers_whatever_the_space():
    rng = torch.Generator().manual_seed(0)
    head = state(torch.randn(C, 6, generator=rng), torch.zeros(C))
    features, classes = torch.randn(3, 6, generator=rng), torch.tensor([0, 2, 3])
    uploads = {
        "prototype": Prototypes(features, classes),
        "entangled": Entangled(features[0], torch.tensor([0.2, 0.0, 0.3, 0.5, 0.0])),
    }
    turn = torch.linalg.qr(torch.randn(6, 6, generator=rng))[0]
    turned_head = state(head.state["weight"] @ turn, head.state["bias"])
    turned = {
        "prototype": Prototypes(features @ turn, classes),
        "entangled": Entangled(features[0] @ turn, uploads["entangled"].label_encoding),
    }
    for kind, upload in uploads.items():
        told, rows = describe(Observation(1, 0, (upload,), (head,)), C)
        assert told.tolist() == [0, 2, 3]
        assert rows.isfinite().all()
        other = describe(Observation(1, 0, (turned[kind],), (turned_head,)), C)[1]
        torch.testing.assert_close(rows, other, rtol=1e-3, atol=1e-3)
    single = Prototypes(features[:1], classes[:1])
    assert describe(Observation(1, 0, (single,), ()), C)[1].isfinite().all()
    with pytest.raises(UserError, match="holds kernel"):
        describe(Observation(1, 0, (Kernel(torch.eye(2)),), ()), C)


def test_a_hidden_encoding_names_no_class():
    head = Entangled(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]))
    seen = Observation(1, 0, (head,), (state(torch.eye(2), torch.zeros(2)),))
    named, numbers = describe(seen, 2)
    assert named.tolist() == [1]
    every, fewer = describe(seen, 2, hidden=True)
    assert every.tolist() == [0, 1]
    assert fewer.shape[1] == numbers.shape[1] - 2  # the weight, and the weight beside the client's other classes


def test_shadow_clients_upload_what_they_are_shown():
    source = load_digits()
    images = torch.tensor(source.images[:120], dtype=torch.float32).unsqueeze(1) / 16
    own = Samples(images, torch.tensor(source.target[:120]))
    rng = torch.Generator().manual_seed(0)
    head, short = state(torch.randn(10, 6, generator=rng), torch.zeros(10)), ShadowTraining(epochs=1)
    for upload in (
        Prototypes(torch.rand(2, 6), torch.tensor([0, 1])),
        Entangled(torch.rand(6), torch.full((10,), 0.1)),
    ):
        like = Observation(2, 0, (upload,), (head,))
        made, again = (tuple(shadow_clients(like, own, 10, 3, 0, training=short)) for _ in range(2))
        assert [type(one.upload[0]) for one, _ in made] == [type(upload)] * 3
        assert all(describe(one, 10)[1].isfinite().all() for one, _ in made)
        assert all(2 <= int(counts.sum()) <= 70 for _, counts in made)
        for (_, first), (_, second) in zip(made, again, strict=True):
            expect_same(first, second)
    card = ThreatModel(attacker_data="same_domain")
    outputs = Observation(2, 0, (ClassLogits(torch.rand(2, 10).softmax(1), torch.tensor([0, 1])),), ())
    some = Knowledge(card, (1, 8, 8), 10, public_images=images, public_labels=own.labels)
    assert LabelDisclosure()(InferenceProblem((outputs,), some, "logits")).asked.question == "holds"
    with pytest.raises(UserError, match="is learned from prototypes and entangled vectors"):
        PropertyInference()(InferenceProblem((outputs,), some, "logits"))
    few = Knowledge(card, (1, 8, 8), 10, public_images=images[:20], public_labels=own.labels[:20])
    with pytest.raises(UserError, match="expected at least 40"):
        PropertyInference()(InferenceProblem((like,), few, "entangled"))


def test_likeness_by_hand():
    # Images at -1, -1, 0, 1 and 1 of a line, already centred: squares 1, 1, 0, 1, 1, mean 0.8.
    places = torch.tensor([-1.0, -1.0, 0.0, 1.0, 1.0])
    found = class_similarity(torch.outer(places, places), torch.tensor([0, 0, 1, 2, 0]), 4)
    # Class 0 has pairs of products 1, -1 and -1; classes 1 to 3 have no pair.
    assert found[0] == pytest.approx(-1 / 3 / 0.8)
    assert found[1:].isnan().all()
    shifted, longer = torch.outer(places + 3, places + 3), 5 * torch.outer(places, places)
    for same in (shifted, longer):
        assert class_similarity(same, torch.tensor([0, 0, 1, 2, 0]), 4)[0] == pytest.approx(float(found[0]))


def kernel_clients(number, *, tell=True):
    """Clients that move public images of the classes that they hold away from the others, or all classes alike."""
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.rand(40, 1, 4, 4, generator=rng), torch.arange(40) % C
    centres = torch.randn(C, 16, generator=rng)
    uploads, held = {}, []
    for client in range(number):
        mine = torch.rand(C, generator=rng) < 0.5
        away = 1 + 0.5 * mine if tell else torch.ones(C)
        features = (away[:, None] * centres)[labels] + torch.randn(40, 16, generator=rng)
        matrix = features @ features.T
        uploads[client] = Observation(2, client, (Kernel(matrix),), (PublicImages(torch.cat([images[:3], images])),))
        held.append(mine.numpy())
    return uploads, np.concatenate(held), images, labels


@pytest.mark.parametrize(("tell", "low", "high"), [(True, 0.8, 1.0), (False, 0.4, 0.6)])
def test_kernels_tell_the_classes_that_clients_set_apart_and_no_others(tell, low, high):
    uploads, held, images, labels = kernel_clients(20, tell=tell)
    found = kernel_class_scores(uploads, images, labels, C)
    assert low < area(np.concatenate([scores.numpy() for _, scores in found.values()]), held) <= high


SMALL = [*DIGITS, "--per-class", "30", "--clients", "5", "--rounds", "2", "--alpha", "0.5"]


def record(target, *extra):
    assert run(["attack", "--target", target, "--attack", "property", *extra, "--out", "out", "--quiet"]) == 0
    return load_scores(Path("out/property"))


def test_shadow_clients_are_learned_from_where_images_are_granted_and_extractors_are_not():
    shadow = ["--public", "60", "--knowledge", "attacker_data=same_domain", "--knowledge", "extractor=none"]
    found = record("prototype", *SMALL, *shadow, "--attack-option", "shadow_clients=4", "--attack-option", "steps=5")
    assert found.learned_from == "4 shadow clients"
    assert found.question == "majority"
    assert found.n_yes >= 5
    assert 0 <= found.auc.ci95[0] <= found.auc.value <= 1


def test_a_histogram_sent_in_the_first_round_is_read_in_the_last(capsys):
    assert run(["train", "--method", "fedgen", *SMALL, "--rounds", "3", "--out", "run", "--quiet"]) == 0
    found = record("classifier", "--run", "run")
    assert found.round == 3
    assert found.learned_from == "the uploads of all rounds themselves"
    assert found.knowledge.rounds_seen == 3
    assert (found.question, found.auc.value) == ("majority", 1.0)
    named = next(one for one in answers(found) if one.endpoint == "label disclosure")
    assert (named.verdict, named.named.exact) == ("leak", 5)


def test_what_cannot_be_answered_is_refused_before_anything_is_attacked_or_written(capsys):
    assert run(["train", "--method", "fedgh", *SMALL, "--rounds", "1", "--out", "run", "--quiet"]) == 0
    suite = ["--attack", "dip", "--attack", "property", "--out", "out"]
    assert run(["attack", "--target", "prototype", "--run", "run", *suite, "--quiet"]) == 2
    assert "attacker has nothing to learn it from" in capsys.readouterr().err
    assert not Path("out").exists()
