"""Who was a member: certain where an upload is one image's, chance where it is somebody else's."""

import json

import numpy as np
import pytest
import torch
from federations import DIGITS
from gradient_cases import clients, images_and_labels, knowledge_of, sigmoid_net
from torch.nn.functional import cross_entropy

from fedpriv.algebra.matrices import dense
from fedpriv.attacks.inference.base import Candidates, InferenceProblem
from fedpriv.attacks.inference.membership import MembershipInference, calibrate_by_class, calibrate_by_other_clients
from fedpriv.attacks.inference.update_scores import update_signals
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.cli.main import run
from fedpriv.eval.inference_case import area
from fedpriv.uploads.payloads import AngleMatrix, Classifier, Entangled, Prototypes
from fedpriv.util.errors import UserError

SMALL = [*DIGITS, "--per-class", "20", "--clients", "4", "--rounds", "2"]


def images(number, seed=0):
    return torch.rand(number, 1, 4, 4, generator=torch.Generator().manual_seed(seed))


def knowledge(heads=None):
    return Knowledge(ThreatModel(), (1, 4, 4), 3, extractors={0: lambda batch: batch.flatten(1)}, heads=heads or {})


def infer(inference, seen, candidates, known, kind):
    client = candidates.client
    return inference(InferenceProblem((seen,), known, kind, {client: candidates})).values[client]


def score(upload, pictures, labels, broadcast=(), heads=None):
    candidates = Candidates(0, pictures, torch.tensor(labels))
    seen = Observation(1, 0, upload, broadcast)
    return infer(MembershipInference(), seen, candidates, knowledge(heads), upload[0].kind)


def test_the_one_image_behind_a_prototype_scores_highest():
    pictures = images(6)
    upload = (Prototypes(pictures[2].flatten()[None], torch.tensor([1])),)
    found = score(upload, pictures, [1] * 6)
    assert int(found.argmax()) == 2
    assert found[2] == pytest.approx(0, abs=1e-6)


def test_distances_beside_the_others_by_hand():
    others = [torch.tensor([4.0, 1.0, 2.0]), torch.tensor([9.0, torch.inf, 2.0])]
    found = calibrate_by_other_clients(torch.tensor([1.0, 0.0, torch.inf]), others)
    assert found[0] == pytest.approx(0.5 * np.log(6))  # the mean of log 4 and log 9
    assert found[1] == pytest.approx(-np.log(1e-9))  # one of the others speaks of it, at distance 1
    assert found[2] == -torch.inf


def beside(pictures, anchors):
    """Scores of pictures of class 0 for client 0, of clients who upload one vector each."""
    observations = tuple(
        Observation(1, k, (Prototypes(one[None], torch.tensor([0])),), ()) for k, one in enumerate(anchors)
    )
    flat = {k: lambda batch: batch.flatten(1) for k in range(len(anchors))}
    known = Knowledge(ThreatModel(), (1, 4, 4), 3, extractors=flat)
    asked = Candidates(0, pictures, torch.zeros(len(pictures), dtype=torch.int64))
    return MembershipInference()(InferenceProblem(observations, known, "prototype", {0: asked})).values[0]


def test_what_is_near_to_everybody_gives_way_to_what_is_near_to_the_client_and_the_same_upload_of_all_is_no_null():
    mean = torch.full((16,), 0.5)
    pictures = torch.stack([mean, mean + 0.2 * torch.eye(16)[0]]).view(2, 1, 4, 4)
    easy, own = 0, 1
    anchors = [mean + 0.1 * torch.eye(16)[0], mean - 0.01 * torch.eye(16)[0], mean - 0.01 * torch.eye(16)[1]]
    alone, held = beside(pictures, anchors[:1]), beside(pictures, anchors)
    assert alone[easy] > alone[own] - 1e-6  # as near as the other
    assert held[own] > held[easy]
    assert torch.equal(beside(pictures, anchors[:1] * 3), alone)


def test_a_class_that_is_not_uploaded_rules_members_out():
    upload = (Prototypes(images(1).flatten(1), torch.tensor([1])),)
    assert score(upload, images(2), [1, 0]).isfinite().tolist() == [True, False]
    mixed = (Entangled(torch.ones(16), torch.tensor([0.0, 0.3, 0.7])),)
    assert score(mixed, images(3), [0, 1, 2]).isfinite().tolist() == [False, True, True]


def test_no_encoding_rules_a_member_out_that_is_not_believed():
    held = Candidates(0, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    knowledge = Knowledge(ThreatModel(), (1, 1, 2), 2, extractors={0: lambda images: images})
    seen = Observation(1, 0, (Entangled(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])),), ())
    problem = InferenceProblem((seen,), knowledge, "entangled", {0: held})
    assert MembershipInference()(problem).values[0].tolist() == pytest.approx([-torch.inf, -2.0])
    assert MembershipInference(classes="any")(problem).values[0].tolist() == pytest.approx([0.0, -2.0])


def trained(kind, pictures, labels, seen, known):
    return infer(MembershipInference(), seen, Candidates(seen.client, pictures, labels), known, kind)


def test_the_images_of_a_step_stand_out_and_those_of_another_client_do_not():
    pictures, labels = images_and_labels(8)
    model = sigmoid_net()
    seen = clients(model, pictures, labels, batch_size=4, steps=1, rate=0.1)
    known = knowledge_of(model, labels, batch_size=4)
    both = {k: Candidates(k, pictures, labels) for k in (0, 1)}
    for observations in (seen[:1], seen[1:2], seen[:2]):
        asked = {one.client: both[one.client] for one in observations}
        found = MembershipInference()(InferenceProblem(tuple(observations), known, "model", asked)).values
        for client, values in found.items():
            assert area(values.numpy(), (np.arange(8) < 4) == (client == 0)) > 0.7


def test_signals_less_the_class_median_on_one_scale_by_hand():
    # Of one class: medians 2 and 5 leave -2, 0, 4 and -4, 0, 8, of median size 2 and 4: the same on one scale.
    signals = torch.tensor([[0.0, 2.0, 6.0], [1.0, 5.0, 13.0]])
    assert calibrate_by_class(signals[:1], torch.zeros(3).long()).tolist() == pytest.approx([-1, 0, 2])
    assert calibrate_by_class(signals, torch.zeros(3).long()).tolist() == pytest.approx([-0.5, 0, 1])


def test_heads_and_angle_matrices_give_the_image_of_a_step_away():
    draw = torch.Generator().manual_seed(3)
    pictures, labels = images(5), torch.tensor([2] * 5)
    rows = pictures.flatten(1)
    weight, bias = torch.randn(3, 16, generator=draw).requires_grad_(), torch.zeros(3, requires_grad=True)
    blocks = torch.randn(4, 4, 4, generator=draw).div_(4).requires_grad_()

    angled = rows[3:4] + rows[3:4] @ dense(blocks)
    for parts, logits in (
        ({"weight": weight, "bias": bias}, rows[3:4] @ weight.T + bias),
        ({"blocks": blocks}, angled @ weight.T + bias),
    ):
        slopes = torch.autograd.grad(cross_entropy(logits, labels[:1]), list(parts.values()))
        before = {name: value.detach() for name, value in parts.items()}
        after = {name: value - 0.1 * slope for (name, value), slope in zip(before.items(), slopes, strict=True)}
        if "blocks" in parts:
            sent = (AngleMatrix(dense(before["blocks"])[None]),)  # the server sends the dense matrix
            seen, kind = Observation(1, 0, (AngleMatrix(after["blocks"]),), sent), "angle-matrix"
        else:
            seen, kind = Observation(1, 0, (Classifier(after),), (Classifier(before),)), "classifier"
        known = knowledge({0: (weight.detach(), bias.detach())})
        found = update_signals([seen], pictures, labels, known)[0]
        assert int(found.argmax()) == 3
        assert found[3] == pytest.approx(1, abs=1e-5)
        assert int(trained(kind, pictures, labels, seen, known).argmax()) == 3
    with pytest.raises(UserError, match="no head of client 0"):
        trained("angle-matrix", pictures, labels, seen, knowledge())


def record(target, *extra):
    assert run(["attack", "--target", target, "--attack", "membership", *extra, "--out", target, "--quiet"]) == 0
    with open(f"{target}/membership/membership.json") as file:
        return json.load(file)


def test_prototypes_of_one_image_give_it_away_and_shuffled_ones_do_not():
    found = record("prototype", *SMALL, "--alpha", "0.1")
    assert (found["nonmembers"], found["baseline"]["name"]) == ("held_out", "assumed_extractor")
    low, high = found["shuffled"]["auc"]["ci95"]
    assert low < 0.5 < high
    assert found["classes"]["exact"] == found["classes"]["clients"] == 4


@pytest.mark.parametrize("target", ["model", "low-rank-model", "classifier", "angle-matrix"])
def test_one_step_on_one_image_gives_it_away_and_shuffled_uploads_do_not(target):
    found = record(target, "--reach", "none")
    assert found["auc"]["value"] == 1.0
    assert 20 <= found["n_candidates"] <= 40  # twenty clients' one image each
    assert found["shuffled"]["auc"]["value"] < 0.95  # of 38 candidates its standard deviation is 0.1
