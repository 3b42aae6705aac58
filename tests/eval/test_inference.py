"""Inferences judged by hand-made answers: candidates in pairs, scales of clients, strata, controls, what is refused."""

import dataclasses
from typing import ClassVar

import numpy as np
import pytest
import torch
from eval_cases import ABOUT, answers

from fedpriv.attacks.inference.base import Asked, Inference, Scores
from fedpriv.attacks.inputs.targets import Said
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.eval import inference as judged
from fedpriv.eval.inference_case import InferenceCase
from fedpriv.eval.membership import draw_trials, on_common_scale
from fedpriv.eval.records import Provenance
from fedpriv.sources.case import Case
from fedpriv.sources.truth import Holdings
from fedpriv.uploads.payloads import LabelCounts
from fedpriv.util.errors import UserError

KEPT = Provenance.model_fields
PROVENANCE = Provenance(**{name: value for name, value in ABOUT if name in KEPT})

# Forty images, image i of class i mod 4 with every pixel at i / 40. Client 0 trains on ten, client 1 on six. Their held-out
# images have the same classes, but for one of class 0 that client 0 lacks.
LABELS = torch.arange(40) % 4
SAMPLES = Samples((torch.arange(40) / 40)[:, None, None, None].expand(-1, 1, 2, 2).clone(), LABELS)
HELD = {0: np.array([0, 4, 8, 12, 16, 1, 2, 6, 10, 3]), 1: np.array([0, 5, 9, 13, 7, 11])}
HELD_OUT = {0: np.array([20, 24, 28, 32, 17, 14, 18, 22, 15]), 1: np.array([36, 21, 25, 29, 19, 23])}
TRUTH = Holdings(SAMPLES, HELD, held_out=HELD_OUT)


def number_of(image):
    return round(float(image.flatten()[0]) * 40)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Knows(Inference):
    """Scores a candidate by a table: 2 for its client's images, then 1 for some others, by what uploads hold."""

    name: ClassVar[str] = "knows"
    asks: ClassVar = "images"
    number: int = 4

    @property
    def n_candidates(self):
        return self.number

    def run(self, problem):
        values = {}
        for client, one in problem.candidates.items():
            mine = set(problem.uploads[client].upload[0].counts.tolist())
            values[client] = torch.tensor([float(number_of(image) in mine) for image in one.images]).double()
        return Scores(self.ask(problem), values, seconds=1.0)


def seen(client, numbers, round_=3):
    return Observation(round_, client, (LabelCounts(torch.tensor(numbers)),), ())


def case_of(observations, shuffled=None, told=None, truth=TRUTH):
    knowledge = Knowledge(ThreatModel(), (1, 2, 2), 4)
    told = {client: Said(None, None) for client in HELD} if told is None else told
    return InferenceCase(Case(tuple(observations), shuffled, knowledge, ()), truth, "label-counts", 0, told)


OWN = tuple(seen(client, own.tolist()) for client, own in HELD.items())


# ---------------------------------------------------------------- candidates


def test_every_member_has_a_held_out_image_of_its_client_and_class():
    for trial, client in zip(draw_trials(TRUTH, [0, 1], 100, 0), (0, 1), strict=True):
        numbers = np.array([number_of(image) for image in trial.candidates.images])
        assert trial.candidates.client == client
        assert len(set(numbers)) == len(numbers)
        assert set(numbers[~trial.member]) == set(HELD_OUT[client])
        assert set(numbers[trial.member]) <= set(HELD[client])
        classes = numbers % 4
        assert classes.tolist() == trial.candidates.labels.tolist()
        assert sorted(classes[trial.member]) == sorted(classes[~trial.member])
        assert len(trial.member) == (18, 12)[client]
    strange = draw_trials(dataclasses.replace(TRUTH, held_out={1: HELD_OUT[1]}), [0, 1], 100, 0)
    assert [len(one.member) for one in strange] == [0, 12]  # others' images are no substitute


def test_without_held_out_images_others_images_are_scored_and_no_leak_is_claimed():
    truth = dataclasses.replace(TRUTH, held_out={})
    for trial, client in zip(draw_trials(truth, [0, 1], 100, 0), (0, 1), strict=True):
        numbers = [number_of(image) for image in trial.candidates.images]
        assert [n in HELD[client] for n in numbers] == trial.member.tolist()
    crowd = {client: np.arange(8 * client, 8 * client + 8) for client in range(5)}
    seen_all = [seen(client, own.tolist()) for client, own in crowd.items()]
    wrong = [seen(client, crowd[(client + 1) % 5].tolist()) for client in crowd]
    told = dict.fromkeys(crowd, Said(None, None))
    for held_out in ({}, {k: crowd[(k + 1) % 5] for k in crowd}):
        case = case_of(seen_all, wrong, told, Holdings(SAMPLES, crowd, held_out=held_out))
        record = judged.evaluate(Knows(number=100), case, PROVENANCE)
        (answer,) = answers(record)
        assert record.auc.value == 1
        assert record.nonmembers == ("held_out" if held_out else "others")
        assert (answer.verdict, answer.why) == (("leak", "") if held_out else ("inconclusive", "no held-out images"))


def test_members_are_those_that_went_into_the_upload_and_no_auxiliary_is_the_clients():
    used = dataclasses.replace(TRUTH, used={0: np.array([4, 1])})
    (trial,) = draw_trials(used, [0], 100, 0)
    numbers = np.array([number_of(image) for image in trial.candidates.images])
    assert sorted(numbers[trial.member]) == [1, 4]
    assert not set(numbers[~trial.member]) & set(HELD[0].tolist())


def test_a_client_without_held_out_images_of_its_classes_gives_no_candidates():
    everything = Holdings(SAMPLES, {0: np.arange(0, 40, 4)}, held_out={0: np.array([1, 2])})
    assert [len(trial.member) for trial in draw_trials(everything, [0], 100, 0)] == [0]
    with pytest.raises(UserError) as refused:
        judged.check(Knows(), case_of([seen(0, [1])], truth=everything))
    assert str(refused.value).startswith("knows: no held-out image of a client has the class")


def test_scores_of_clients_on_one_scale_by_hand():
    # Median 4, absolute deviations 3, 1, 0, 1, 4 with the median 1.
    assert on_common_scale(np.array([1.0, 3.0, 4.0, 5.0, 8.0])).tolist() == [-3, -1, 0, 1, 4]
    # Deviations 2, 0, 2 of three, and what is ruled out stands one below the lowest.
    assert on_common_scale(np.array([0.0, -np.inf, 2.0, 4.0])).tolist() == [-1, -2, 0, 1]
    assert on_common_scale(np.array([5.0, 5.0, 5.0, 7.0])).tolist() == [0, 0, 0, 2]  # no spread: as they are
    assert on_common_scale(np.array([-np.inf] * 3)).tolist() == [0, 0, 0]


# ---------------------------------------------------------------- membership


def test_who_knows_every_member_is_always_right_and_its_control_is_not():
    swapped = (seen(0, HELD[1].tolist()), seen(1, HELD[0].tolist()))
    found = judged.evaluate(Knows(number=100), case_of(OWN, swapped), PROVENANCE)
    assert (found.kind, found.round, found.n_clients) == ("membership", 3, 2)
    assert found.auc.value == 1
    assert (found.n_candidates, found.n_nonmembers) == (30, 15)
    assert found.shuffled.auc.value < 0.7
    assert [one.measure for one in found.comparisons] == ["membership", "members_found"]
    assert found.comparisons[0].against in ("chance", "shuffled")
    assert found.classes is None
    assert 0 < found.cost.seconds < 60
    assert found.attack == ABOUT.attack


def test_without_other_uploads_chance_is_the_baseline():
    found = judged.evaluate(Knows(number=100), case_of(OWN), PROVENANCE)
    assert found.shuffled is None
    assert [one.against for one in found.comparisons] == ["chance", "chance"]


# ---------------------------------------------------------------- properties


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guesses(Knows):
    """Scores classes by what an upload holds: counts of images, or of anything."""

    asks: ClassVar = "classes"
    at_least: int = 1
    classes: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3), (0, 1, 2, 3))

    def ask(self, problem):
        return Asked({k: torch.tensor(self.classes[k]) for k in problem.uploads}, "share")

    def answers(self, counts, question):
        assert question == "share"
        return counts >= self.at_least

    def run(self, problem):
        asked = self.ask(problem)
        rows = {k: problem.uploads[k].upload[0].counts.double()[asked.classes[k]] for k in asked.classes}
        return Scores(asked, rows, "nobody")


COUNTS = (seen(0, [5, 1, 3, 1]), seen(1, [1, 3, 0, 2]))


def test_a_property_by_hand():
    told = {0: Said((0, 1, 2, 3), None), 1: Said((0, 1), None)}
    found = judged.evaluate(Guesses(at_least=2), case_of(COUNTS, told=told), PROVENANCE)
    assert (found.kind, found.question, found.learned_from) == ("property", "share", "nobody")
    assert (found.n_pairs, found.n_yes, found.n_clients, found.round) == (8, 4, 2, 3)
    assert found.auc.value == 1  # 5, 3 of client 0 and 3, 2 of client 1 are yes; the others are 1, 1, 1 and 0
    # By another's upload 1, 3, 0, 2 and 5, 1, 3, 1: the yes score 1, 0, 1, 1, the no 3, 2, 5, 3: none is above.
    assert found.shuffled.auc.value == 0
    assert (found.comparisons[0].measure, len(found.comparisons)) == ("property", 1)
    assert found.cost.seconds < 60


@pytest.mark.parametrize(("least", "answer"), [(0, "yes"), (9, "no")])
def test_a_question_with_one_answer_is_refused(least, answer):
    with pytest.raises(UserError) as refused:
        judged.check(Guesses(at_least=least), case_of(COUNTS))
    assert str(refused.value).startswith(
        f"knows: the answer is {answer} for all 8 client and class pairs; ask another question with "
    )
    assert str(refused.value).endswith(" question=holds or majority")
    judged.check(Guesses(at_least=2), case_of(COUNTS))
