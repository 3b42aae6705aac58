"""Property inference: certain where counts are sent, learned where they are not, chance where nothing is there."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from compare import expect_same
from federations import DIGITS
from sklearn.datasets import load_digits

from fedpriv.attacks.inference.base import InferenceProblem
from fedpriv.attacks.inference.property import BY_BIASES, PropertyInference
from fedpriv.attacks.inference.property_features import class_similarity, describe, kernel_class_scores
from fedpriv.attacks.inference.shadow_clients import KnownClient, shadow_clients
from fedpriv.attacks.inputs.targets import said
from fedpriv.attacks.inversion.surrogate import ShadowTraining
from fedpriv.attacks.observation import BatchFacts, Knowledge, KnowledgeCard, Observation
from fedpriv.cli.main import run
from fedpriv.datasets.types import Samples
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.roc import Ranked, area
from fedpriv.scoring.storage import load_scores
from fedpriv.scoring.verdict import inferred
from fedpriv.util.errors import UserError
from fedpriv.wire.payloads import (
    Classifier,
    ClassLogits,
    Entangled,
    Kernel,
    LabelCounts,
    Prototypes,
    PublicImages,
    Representations,
)

C = 5


def prototype_client(client, *, tell=True, n_classes=C):
    """A client whose prototype lengths follow its counts, or do not."""
    rng = torch.Generator().manual_seed(client)
    counts = torch.randint(1, 60, (n_classes,), generator=rng)
    directions = torch.nn.functional.normalize(torch.randn(n_classes, 8, generator=rng), dim=1)
    lengths = (1 + counts / 20.0) if tell else torch.ones(n_classes)
    upload = (Prototypes(directions * lengths[:, None], torch.arange(n_classes)),)
    return KnownClient(Observation(1, client, upload, ()), counts)


def auc_of(clients, attack, question):
    scores, answers = [], []
    for number, client in enumerate(clients):
        learned = attack.learn([other for i, other in enumerate(clients) if i != number], question, C)
        classes, values = attack.score(client.observation, question, C, learned)
        scores.append(values.numpy())
        answers.append(attack.answers(client.counts, question)[classes].numpy())
    return area(np.concatenate(scores), np.concatenate(answers))


def test_positive_control_lengths_that_follow_counts_give_the_majority_away():
    clients = [prototype_client(client) for client in range(20)]
    assert auc_of(clients, PropertyInference(), "majority") > 0.95
    assert auc_of(clients, PropertyInference(threshold=0.25), "share") > 0.9


def test_negative_control_lengths_that_do_not_give_nothing_away():
    clients = [prototype_client(client, tell=False) for client in range(40)]
    assert 0.35 < auc_of(clients, PropertyInference(), "majority") < 0.65


def test_answers_by_hand():
    attack, counts = PropertyInference(threshold=0.3), torch.tensor([5, 0, 5, 2])
    assert attack.answers(counts, "holds").tolist() == [True, False, True, True]
    assert attack.answers(counts, "majority").tolist() == [True, False, True, False]
    assert attack.answers(counts, "share").tolist() == [True, False, True, False]


def test_counts_and_label_sets_are_read_off():
    attack = PropertyInference()
    counted = (Prototypes(torch.zeros(2, 3), torch.tensor([1, 4]), torch.tensor([3, 9])),)
    for upload in (counted, (LabelCounts(torch.tensor([0, 3, 0, 0, 9])),)):
        assert attack.read_off(said([upload]), "majority", C)[1].tolist() == [0, 0, 0, 0, 1]
    named = (Prototypes(torch.zeros(2, 3), torch.tensor([1, 4])),)
    assert attack.read_off(said([named]), "holds", C)[1].tolist() == [0, 1, 0, 0, 1]
    assert attack.read_off(said([named]), "majority", C) is None
    assert attack.asked([said([named])]) == "majority"
    assert attack.asked([said([(Kernel(torch.eye(2)),)])]) == "holds"
    assert PropertyInference(question="share").asked([said([named])]) == "share"
    raw = (Representations(torch.zeros(3, 2), torch.tensor([0, 2, 2])),)
    assert attack.read_off(said([raw]), "majority", C)[1].tolist() == [0, 0, 1, 0, 0]


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
    moved = state(head.state["weight"] + 0.1, head.state["bias"] + 0.1)
    uploads = {
        "prototype": Prototypes(features, classes),
        "logits": ClassLogits(torch.randn(3, C, generator=rng).softmax(1), classes),
        "entangled": Entangled(features[0], torch.tensor([0.2, 0.0, 0.3, 0.5, 0.0])),
        "classifier": moved,
    }
    turn = torch.linalg.qr(torch.randn(6, 6, generator=rng))[0]
    turned_head = state(head.state["weight"] @ turn, head.state["bias"])
    turned = {
        "prototype": Prototypes(features @ turn, classes),
        "entangled": Entangled(features[0] @ turn, uploads["entangled"].label_encoding),
    }
    for kind, upload in uploads.items():
        told, rows = describe(Observation(1, 0, (upload,), (head,)), C)
        assert told.tolist() == (list(range(C)) if kind == "classifier" else [0, 2, 3])
        assert rows.isfinite().all()
        if kind in turned:
            other = describe(Observation(1, 0, (turned[kind],), (turned_head,)), C)[1]
            torch.testing.assert_close(rows, other, rtol=1e-3, atol=1e-3)
    single = Prototypes(features[:1], classes[:1])
    assert describe(Observation(1, 0, (single,), ()), C)[1].isfinite().all()
    with pytest.raises(UserError, match="holds kernel"):
        describe(Observation(1, 0, (Kernel(torch.eye(2)),), ()), C)


def test_an_answer_that_is_always_the_same_teaches_nothing():
    clients = [prototype_client(client) for client in range(3)]
    learned = PropertyInference().learn(clients, "holds", C)
    assert learned(torch.zeros(2, len(learned.weight), dtype=torch.float64)).tolist() == [0, 0]


def test_intervals_are_over_clients():
    rng = np.random.default_rng(0)
    answers = [np.arange(6) == k % 6 for k in range(12)]
    good = Ranked.of([told + 0.01 * rng.normal(size=6) for told in answers], answers, range(12)).rates()
    assert good.auc.value == pytest.approx(1)
    assert 0.7 < good.auc.ci95[0] < 1 == pytest.approx(good.auc.ci95[1])  # twelve clients are not all there are
    noise = Ranked.of([rng.normal(size=6) for _ in answers], answers, range(12)).rates()
    assert noise.auc.ci95[0] < 0.5 < noise.auc.ci95[1]
    assert Ranked.of([np.arange(6.0)], [answers[0]], [0]).rates().auc.ci95 is None


def test_shadow_clients_upload_what_they_are_shown():
    source = load_digits()
    images = torch.tensor(source.images[:120], dtype=torch.float32).unsqueeze(1) / 16
    own = Samples(images, torch.tensor(source.target[:120]))
    rng = torch.Generator().manual_seed(0)
    head, short = state(torch.randn(10, 6, generator=rng), torch.zeros(10)), ShadowTraining(epochs=1)
    for upload in (
        Prototypes(torch.rand(2, 6), torch.tensor([0, 1])),
        Entangled(torch.rand(6), torch.full((10,), 0.1)),
        ClassLogits(torch.rand(2, 10).softmax(1), torch.tensor([0, 1])),
        head,
    ):
        like = Observation(2, 0, (upload,), (head,))
        made, again = (
            tuple(shadow_clients(like, own, 10, 3, 0, training=short, mechanism="RAP", batch=BatchFacts(8, 0.1, 2)))
            for _ in range(2)
        )
        assert [type(one.observation.upload[0]) for one in made] == [type(upload)] * 3
        assert all(describe(one.observation, 10)[1].isfinite().all() for one in made)
        assert all(2 <= int(one.counts.sum()) <= 70 for one in made)
        for a, b in zip(made, again, strict=True):
            expect_same(a.counts, b.counts)
    card = KnowledgeCard(attacker_data="same_domain")
    few = Knowledge(card, (1, 8, 8), 10, public_images=images[:20], public_labels=own.labels[:20])
    with pytest.raises(UserError, match="expected at least 40"):
        PropertyInference(by="learned")(InferenceProblem((like,), few))


# ---------------------------------------------------------------- kernels


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


def test_images_that_are_not_the_attackers_have_no_class():
    uploads, _, images, labels = kernel_clients(3)
    with pytest.raises(UserError, match="none of the attacker's own"):
        kernel_class_scores(uploads, images[1:], labels[1:], C)


# ---------------------------------------------------------------- on real runs

SMALL = [*DIGITS, "--per-class", "30", "--clients", "5", "--rounds", "2", "--alpha", "0.5"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def record(target, *extra):
    assert run(["attack", "--target", target, "--attack", "property", *extra, "--out", "out", "--quiet"]) == 0
    return load_scores(Path("out/property"))


OTHERS = ["--attack-option", "property.known=others"]


def test_prototypes_without_counts_are_learned_from_and_reported():
    found = record("prototype", *SMALL, *OTHERS)
    assert found.question == "majority"
    assert found.learned_from == "the 4 other clients, in league with the attacker"
    assert found.colluders == "all other clients"
    assert found.options["known"] == "others"
    assert found.knowledge.extractor == "none"
    assert (found.run.method, found.defenses) == (found.method, ())
    assert found.n_yes >= 5
    assert 0 <= found.auc.ci95[0] <= found.auc.value <= 1
    assert found.permuted.auc.value < 0.9
    with open("out/report.md") as file:
        assert inferred(judge(found)) in file.read()
    with open("out/report.html") as file:
        assert 'id="property"' in file.read()
    assert run(["report", "out", "--out", "again", "--quiet"]) == 0
    with open("again/report.md") as file:
        assert inferred(judge(found)) in file.read()


def test_shadow_clients_are_learned_from_where_images_are_granted():
    shadow = ["--public", "60", "--knowledge", "attacker_data=same_domain"]
    options = ["--attack-option", "shadow_clients=4", "--attack-option", "epochs=1", "--attack-option", "by=learned"]
    found = record("classifier", *SMALL, *shadow, *options)
    assert found.learned_from == "4 shadow clients"
    assert found.question == "holds"
    assert found.n_pairs == 50


def test_what_is_sent_in_clear_is_said_so():
    found = record("representation", *SMALL)
    assert found.auc.value == 1.0
    assert inferred(judge(found)).startswith("Sent in clear")


def test_no_truth_without_saying_so_only_what_is_in_clear():
    found = record("prototype", *SMALL)
    assert found.question == "holds"
    assert found.learned_from == "the upload itself"
    assert found.colluders == ""
    assert inferred(judge(found)) == "Sent in clear: has the client any image of the class."


def test_a_histogram_sent_in_the_first_round_is_read_in_the_last(capsys):
    assert run(["train", "--method", "fedgen", *SMALL, "--rounds", "3", "--out", "run", "--quiet"]) == 0
    found = record("classifier", "--run", "run")
    assert found.round == 3
    assert found.learned_from == "the uploads of all rounds themselves"
    assert found.knowledge.rounds_seen == 3
    assert (found.question, found.auc.value) == ("majority", 1.0)
    assert inferred(judge(found)).startswith("Sent in clear")
    attack = ["attack", "--target", "classifier", "--run", "run", "--attack", "membership", "--out", "m", "--quiet"]
    assert run(attack) == 0
    classes = load_scores(Path("m/membership")).classes
    assert dict(classes) == {"clients": 5, "exact": 5, "counted": 5, "counts_exact": 5}


def test_who_said_nothing_in_the_stored_rounds_is_guessed_and_not_given_away():
    train = ["--method", "fedgen", *SMALL, "--clients", "8", "--rounds", "3", "--participation", "0.5"]
    assert run(["train", *train, "--capture", "last", "--out", "run", "--quiet"]) == 0
    found = record("classifier", "--run", "run")
    assert found.learned_from.startswith("the uploads of all rounds themselves of ")
    assert found.learned_from.endswith(f" clients, and {BY_BIASES}")
    assert found.colluders == ""
    assert 0.5 < found.auc.value < 1
    assert not inferred(judge(found)).startswith("Sent in clear")


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        (["--attack-option", "question=majority"], "attacker knows nobody to learn it from"),
        (
            ["--attack-option", "question=share", "--attack-option", "threshold=0.99", *OTHERS],
            "the answer is no for all",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_before_anything_is_attacked_or_written(capsys, extra, complaint):
    assert run(["train", "--method", "fedgh", *SMALL, "--rounds", "1", "--out", "run", "--quiet"]) == 0
    suite = ["--attack", "dip", "--attack", "property", "--iterations", "2", "--targets", "2", *extra]
    for _ in range(2):  # nothing is left in the way of a second try
        assert run(["attack", "--target", "prototype", "--run", "run", *suite, "--out", "out", "--quiet"]) == 2
        assert complaint in capsys.readouterr().err
        assert not Path("out").exists()


def test_a_folder_made_for_nothing_is_given_back_and_a_trained_run_is_not(capsys, tmp_path):
    wrong = ["--dataset", "folder", "--data-dir", str(tmp_path / "absent")]
    assert run(["attack", "--target", "prototype", "--attack", "property", *wrong, "--out", "out", "--quiet"]) == 2
    assert not Path("out").exists()
    train = ["--attack", "property", "--attack-option", "question=majority", *SMALL]
    assert run(["attack", "--target", "prototype", *train, "--out", "out", "--quiet"]) == 2
    assert "go on with run out/run" in capsys.readouterr().err
    assert record_of(["--target", "prototype", "--run", "out/run"], "again").question == "holds"


def record_of(flags, out):
    assert run(["attack", *flags, "--attack", "property", "--out", out, "--quiet"]) == 0
    return load_scores(Path(out) / "property")


def test_kernels_need_the_classes_of_public_images_and_nothing_else(capsys):
    public = ["--public", "100", "--rounds", "2", "--clients", "5", "--alpha", "0.3"]
    blind = ["--knowledge", "attacker_data=none"]
    kernels = ["attack", "--target", "kernel", "--attack", "property", *public, *blind, "--quiet", "--out", "refused"]
    assert run(kernels) == 2
    assert "needs attacker_data=same_domain" in capsys.readouterr().err
    found = record("kernel", *public, "--knowledge", "attacker_data=same_domain")
    assert found.learned_from == "the other kernels of the round"
    assert found.question == "holds"
    assert found.classes_alone.auc.value == 0.5
    assert found.n_clients == 5
    again = ["attack", "--target", "kernel", "--run", "out/run", "--attack", "property", "--out", "again", "--quiet"]
    assert run([*again, "--knowledge", "attacker_data=same_domain", *OTHERS]) == 2
    assert "drop known=others" in capsys.readouterr().err


def test_the_list_says_what_it_needs(capsys):
    assert run(["list", "attacks", "--target", "prototype", "--json"]) == 0
    needs = {row["name"]: row["needs from the knowledge card"] for row in json.loads(capsys.readouterr().out)}
    assert "known=others" in needs["property"]


def test_one_client_cannot_be_learned_about_and_other_attacks_go_on(capsys):
    few = [*DIGITS, "--per-class", "20", "--clients", "2", "--rounds", "1", "--batch-size", "10"]
    alone = ["attack", "--target", "classifier", "--attack", "property", *few, *OTHERS]
    assert run([*alone, "--out", "alone", "--quiet"]) == 2
    assert "too few others to learn from" in capsys.readouterr().err
    suite = ["--targets", "2", "--iterations", "2"]
    even = ["--partition", "iid", *suite]  # so that everybody holds every class, and there is nothing to ask
    assert run(["attack", "--target", "classifier", *few, *even, "--out", "suite", "--json"]) == 0
    shown = capsys.readouterr()
    assert "left out: property" in shown.err
    printed = json.loads(shown.out)
    assert printed["property"] == {}
    assert set(printed["attacks"]) == {"head-update"}
    assert set(printed["membership"]) == {"membership"}


def test_the_card_needs_nothing():
    PropertyInference().needs.refuse("property", KnowledgeCard(extractor="none"))
    assert Knowledge(KnowledgeCard(), (1, 8, 8), C).public_images is None
