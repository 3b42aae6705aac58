"""Membership inference: was this very image among those that a client's upload was computed from?

It returns no image but a score for each candidate, higher for likelier members, from the upload and the client's
extractor g. No shadow federation is trained (:mod:`fedpriv.attacks.infer.likelihood_ratio` has one that trains shadow
clients). What an upload says of a candidate is held against what the other clients' uploads say of it, each under its own
extractor, and averaged over the rounds that are attacked (:mod:`fedpriv.attacks.infer.membership_null`); with ``null=none``,
or where nobody else uploaded, it is taken as it is. What is said of a candidate:

- prototypes: ||g(x) - p_y||^2 / ||p_y||^2, with p_y the uploaded prototype of the candidate's class
  (or one less the cosine between them);
- representations: the same with the nearest uploaded row of the class; zero for a member;
- an entangled vector: the same with the one vector, for classes that its label encoding gives weight;
- of both, where the attacker has labelled images of the clients' domain, rather whether the upload deviates from what these
  lead to expect as the candidate does; see :mod:`fedpriv.attacks.infer.membership_deviation`;
- class outputs: KL(u_y || softmax(head(g(x)))), with u_y the uploaded mean output of the class;
- a kernel over public images: how near the representation that ridge regression over pixels extrapolates to x lies to the
  direction of y; see :mod:`fedpriv.attacks.infer.membership_kernel`;
- outputs on public samples: what ridge regression over pixels makes of the client's log outputs at (x, y); see
  :mod:`fedpriv.attacks.infer.membership_public`;
- trained weights (models, extractors, classifiers, angle matrices): how nearly the candidate's input to a fully connected
  layer lies in the span of that layer's change, how much the update resembles its gradient, or how much training lowered its
  loss; see :mod:`fedpriv.attacks.infer.membership_update`.

A candidate of a class that the upload does not speak of cannot be a member: minus infinity. Which classes a client holds is
read off (:mod:`fedpriv.attacks.inputs.targets`), exactly, wherever an upload carries ids, counts or weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import normalize

from fedpriv.attacks.infer.class_scatter import enough
from fedpriv.attacks.infer.contract import Candidates, Inference, InferenceProblem, Moment, Scores
from fedpriv.attacks.infer.membership_deviation import by_classes, deviations, left_out
from fedpriv.attacks.infer.membership_kernel import kernel_signals
from fedpriv.attacks.infer.membership_null import (
    OWN_IMAGES,
    Judged,
    Rule,
    beside_others,
    beyond_the_spread,
    judged,
    over_rounds,
    within_classes,
)
from fedpriv.attacks.infer.membership_public import public_signals
from fedpriv.attacks.infer.membership_update import Judge, update_signals
from fedpriv.attacks.infer.sent_means import AVERAGES, as_round
from fedpriv.attacks.inputs.extractors import represent
from fedpriv.attacks.inputs.outputs import read_outputs
from fedpriv.attacks.inputs.targets import upload_holds
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Needs, Observation, RequirementsByKind
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.kinds import (
    ANSWERS,
    BESIDE_A_HEAD,
    CLASS_OUTPUTS,
    HEADS,
    KERNELS,
    LAYERS,
    PUBLIC_OUTPUTS,
    TRAINED,
    VECTORS,
    WHOLE,
    payload_kind,
)
from fedpriv.wire.payloads import ClassLogits, find_payload

COMPARED = VECTORS | CLASS_OUTPUTS
"""Payloads that candidates are compared with as they were uploaded."""

MOST_ROUNDS_OF_MEANS = 15
"""Rounds of deviations where nobody says how many: a mixture's weights must have changed often to be told apart."""

MOST_OTHERS, FEW_OTHERS, FEWEST_OTHERS = 20, 4, 2
"""Other clients beside whom trained weights are held at most: of whole models, where all share the candidates' gradients; of
single layers; and where each takes another pass through a network, or another projection."""

MOST_STRANGERS = 100
"""Images of the attacker's own that are scored for a client at most."""


@dataclass(frozen=True, kw_only=True)
class MembershipInference(Inference):
    """Score candidates by how near they are to what was uploaded.

    Attributes:
        candidates: how many members, and as many non-members, are tried for each client at most.
        score: of vectors: by the ``deviation`` of means and mixtures from what is expected, by the relative squared
            ``distance``, or by the ``cosine`` of the angle; ``auto`` for the first where the attacker has labelled images of
            the clients' domain, else the second. Trained weights, class outputs and kernels have no such choice.
        null: what an upload's nearness is held against: the same candidate's nearness to the other ``clients``' uploads (of
            trained weights, kernels and outputs on public samples also the other candidates of its class), or ``none``.
        judge: of trained weights: the ``span`` of what went into a fully connected layer, the ``gradient`` that the update
            resembles, or the ``loss`` that fell; ``auto`` for the first where a layer before the head is uploaded, else the
            second.
        classes: of mixtures: ``sent``, those that the label encoding gives weight, or ``any``: encodings that hide weights
            rule nobody out (the answer to ``hide-labels``).
    """

    candidates: Annotated[int, Ge(1)] = 100
    score: Literal["auto", "deviation", "distance", "cosine"] = "auto"
    null: Literal["clients", "none"] = "clients"
    judge: Judge = "auto"
    classes: Literal["sent", "any"] = "sent"

    name = "membership"
    version = 7
    summary = "scores of candidate images: which ones the client trained on"
    asks = "images"
    most_rounds = 5
    targets = COMPARED | ANSWERS | TRAINED
    needs = Needs(extractor=("white_box", "query"))
    requirements_by_kind: ClassVar[RequirementsByKind] = (
        (KERNELS | WHOLE, Needs()),
        (PUBLIC_OUTPUTS, Needs(attacker_data=("same_domain",))),
        (BESIDE_A_HEAD, Needs(extractor=("white_box",))),
    )

    def rounds_on(self, kind: str, card: KnowledgeCard) -> int:
        """Return the number of rounds where nobody says how many: of distances the newest alone; several do no better."""
        if kind in AVERAGES and self.score in ("auto", "deviation") and card.attacker_data == "same_domain":
            return MOST_ROUNDS_OF_MEANS
        return 1 if kind in COMPARED else self.most_rounds

    @property
    def n_candidates(self) -> int:
        """Members, and as many non-members, that are tried for each client at most."""
        return self.candidates

    def run(self, problem: InferenceProblem) -> Scores:
        """Score the candidates of every client."""
        found = {client: self._judged(problem, asked) for client, asked in problem.candidates.items()}
        null = {client: one.null() for client, one in found.items() if one.known}
        known = "images of the attacker's own" if self._knows_strangers(problem) else "other clients' uploads"
        return Scores(
            self.ask(problem),
            {client: one.scores for client, one in found.items()},
            null=null,
            null_source=known if null else "",
        )

    def _judged(self, problem: InferenceProblem, asked: Candidates) -> Judged:
        moments = [*problem.earlier, Moment(tuple(problem.uploads.values()), problem.knowledge)]
        seen = [(one.knowledge, {upload.client: upload for upload in one.observations}) for one in moments]
        seen = [(knowledge, uploads) for knowledge, uploads in seen if asked.client in uploads]
        kind = problem.kind or _answer_in(seen[-1][1][asked.client])
        told = [(known, uploads[asked.client]) for known, uploads in seen]
        if self._deviates(told[-1][1], told[-1][0], kind):
            return self._by_deviation(problem, asked, [one for one in told if self._deviates(one[1], one[0], kind)])
        with_own = self._with_strangers(problem, asked)
        rounds: list[Judged] = []
        for knowledge, uploads in seen:
            own, others = self._signals(uploads, with_own, knowledge, kind)
            rounds.append(judged(own, others, len(asked.labels), self._rule(kind, with_own.labels, bool(others))))
        return over_rounds(rounds)

    def _deviates(self, seen: Observation, knowledge: Knowledge, kind: str | None) -> bool:
        """True where a mean or a mixture is held against what own images lead to expect."""
        if self.score not in ("auto", "deviation") or (kind is not None and kind not in COMPARED):
            return False
        sent, labels = COMPARED.first(seen.upload), knowledge.public_labels
        vectors = (
            sent is not None and sent.kind in AVERAGES and (self.classes == "sent" or sent.said("weights") is None)
        )
        granted = labels is not None and knowledge.card.attacker_data == "same_domain" and enough(labels)
        if self.score == "deviation" and not vectors:
            raise UserError(
                "attack 'membership': score='deviation' is for class means, and for mixtures whose weights are told (not "
                "with classes='any'); use score='distance'"
            )
        if self.score == "deviation" and not granted:
            raise UserError(
                "attack 'membership': score='deviation' needs labelled images of the clients' domain; train the run with "
                f"{argument('strangers', 0.5)}, or use score='distance'"
            )
        return vectors and granted

    def _by_deviation(
        self, problem: InferenceProblem, asked: Candidates, seen: Sequence[tuple[Knowledge, Observation]]
    ) -> Judged:
        own, labels = problem.knowledge.public_images, problem.knowledge.public_labels
        assert own is not None
        assert labels is not None
        rounds = [as_round(observation, knowledge, asked.images, own, labels) for knowledge, observation in seen]
        groups, classes = by_classes(rounds, labels.cpu()), asked.labels.cpu()
        null = left_out(groups, labels.cpu(), classes, problem.seed, "own images", asked.client)
        return Judged(deviations(groups, classes), {OWN_IMAGES: null})

    def _rule(self, kind: str | None, labels: Tensor, beside: bool) -> Rule:
        if kind is not None and kind in ANSWERS | TRAINED and self.null == "clients":
            return beyond_the_spread(labels) if kind in ANSWERS else within_classes(labels)
        if beside and (kind is None or kind in COMPARED):
            return lambda own, others: beside_others(-own, [-one for one in others])
        return lambda own, others: own

    def _signals(
        self, uploads: Mapping[int, Observation], asked: Candidates, knowledge: Knowledge, kind: str | None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the signals of the client's own upload for its candidates ``(n,)``, and those of others', by client."""
        mine = uploads[asked.client]
        beside = [seen for seen in uploads.values() if self._stands_beside(knowledge, kind, mine, seen)]
        if kind is not None and kind in TRAINED:
            nearest = sorted(beside, key=lambda seen: (seen.client <= mine.client, seen.client))
            chosen = nearest[: _others_at_most(kind)]
            rows = update_signals([mine, *chosen], asked.images, asked.labels, knowledge, self.judge)
            return rows[0], {seen.client: row for seen, row in zip(chosen, rows[1:], strict=True)}
        if kind is not None and kind in ANSWERS:
            rows = _answer_signals([mine, *beside], asked, knowledge)
            return rows[0], {seen.client: row for seen, row in zip(beside, rows[1:], strict=True)}
        others = {
            seen.client: self.likeness(seen, replace(asked, client=seen.client), knowledge, kind) for seen in beside
        }
        return self.likeness(mine, asked, knowledge, kind), others

    def _stands_beside(self, knowledge: Knowledge, kind: str | None, own: Observation, seen: Observation) -> bool:
        """True for another client's upload that candidates can be held against as against the client's own.

        Behind secure aggregation all clients' uploads are one and the same, and no null.
        """
        if seen.client == own.client or self.null == "none":
            return False
        if kind is not None and kind in TRAINED:
            mine, theirs = TRAINED.first(own.upload), TRAINED.first(seen.upload)
            if mine is None or theirs is None or _same(mine.tensors(), theirs.tensors()):
                return False
            return kind in WHOLE or (
                seen.client in knowledge.extractors if kind in HEADS else seen.client in knowledge.heads
            )
        if kind is not None and kind in ANSWERS:
            mine, theirs = ANSWERS.first(own.upload), ANSWERS.first(seen.upload)
            return mine is not None and theirs is not None and not _same(mine.tensors(), theirs.tensors())
        if (kind is not None and kind not in COMPARED) or seen.client not in knowledge.extractors:
            return False
        first, second = COMPARED.first(own.upload), COMPARED.first(seen.upload)
        if first is None or second is None:
            return False
        if first.kind in CLASS_OUTPUTS and seen.client not in knowledge.heads:
            return False
        return not _same({"rows": first.rows()}, {"rows": second.rows()})

    def _knows_strangers(self, problem: InferenceProblem) -> bool:
        """True where the attacker holds labelled images that no client trained on; public ones all clients may have used."""
        kind = problem.kind or next(filter(None, map(_answer_in, problem.uploads.values())), None)
        return problem.knowledge.public_labels is not None and (kind is None or kind not in ANSWERS)

    def _with_strangers(self, problem: InferenceProblem, asked: Candidates) -> Candidates:
        """Return candidates, and after them images of the attacker's own of the same classes, where it has some."""
        images, labels = problem.knowledge.public_images, problem.knowledge.public_labels
        if images is None or labels is None or not self._knows_strangers(problem):
            return asked
        there = torch.isin(labels.cpu(), asked.labels.cpu()).nonzero().squeeze(1)
        order = torch.randperm(len(there), generator=generator(problem.seed, "strangers", asked.client))
        chosen = there[order[:MOST_STRANGERS]]
        return Candidates(
            asked.client,
            torch.cat([asked.images, images[chosen].to(asked.images.device)]),
            torch.cat([asked.labels, labels.to(asked.labels.device)[chosen]]),
        )

    def likeness(
        self, observation: Observation, candidates: Candidates, knowledge: Knowledge, kind: str | None = None
    ) -> Tensor:
        """Return scores ``(n,)``, float64 on the CPU; minus infinity where membership is ruled out.

        The observation is the client's, or the permuted control. Where its message holds several kinds of payload, ``kind``
        says which is attacked; None for whatever can be compared directly.

        Raises:
            UserError: when a grant is missing, or the upload holds nothing to compare with.
        """
        if kind is not None and kind in TRAINED:
            seen = replace(observation, client=candidates.client)
            return update_signals([seen], candidates.images, candidates.labels, knowledge, self.judge)[0]
        kind = kind or _answer_in(observation)
        if kind is not None and kind in ANSWERS:
            return _answer_signals([observation], candidates, knowledge)[0]
        features = represent(knowledge, candidates.client, candidates.images).double()
        rows, classes = _anchors(observation, everybody=self.classes == "any")
        if find_payload(observation.upload, ClassLogits) is None:
            return _by_nearness(features, candidates.labels, rows, classes, self.score)
        if candidates.client not in knowledge.heads:
            raise UserError(
                "attack 'membership' on class outputs needs the client's head too; pass "
                f"{argument('knowledge', {'extractor': 'white_box'})}"
            )
        weight, bias = (value.double().cpu() for value in knowledge.heads[candidates.client])
        return _by_divergence((features @ weight.T + bias).log_softmax(1), candidates.labels, rows, classes)


def _others_at_most(kind: str) -> int:
    if kind in LAYERS:
        return FEW_OTHERS
    return MOST_OTHERS if kind in WHOLE and payload_kind(kind).space == "weights" else FEWEST_OTHERS


def _answer_in(seen: Observation) -> str | None:
    """Return the kind of an answer to public inputs in a message, where there is one."""
    answer = ANSWERS.first(seen.upload)
    return None if answer is None else answer.kind


def _answer_signals(seen: Sequence[Observation], asked: Candidates, knowledge: Knowledge) -> Tensor:
    signals = kernel_signals if KERNELS.first(seen[0].upload) is not None else public_signals
    return signals(seen, asked.images, asked.labels, knowledge)


def _same(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def _anchors(observation: Observation, *, everybody: bool = False) -> tuple[Tensor, Tensor]:
    """Return vectors ``(k, width)`` that an upload compares with, and the class of each ``(k,)``.

    With ``everybody`` a mixture is compared with for every class.
    """
    upload = observation.upload
    sent = COMPARED.first(upload)
    if sent is not None:
        rows, classes, weights = sent.rows().double().cpu(), sent.said("classes"), sent.said("weights")
        if weights is not None:
            classes = (torch.ones_like(weights) if everybody else weights.abs()).nonzero().squeeze(1)
            rows = rows.expand(len(classes), -1)
        assert classes is not None
        return rows, classes.cpu()
    raise UserError(f"{upload_holds(observation)}; attack 'membership' compares with one of {', '.join(COMPARED)}")


def _by_nearness(features: Tensor, labels: Tensor, rows: Tensor, classes: Tensor, score: str) -> Tensor:
    if score == "cosine":
        return -_nearest(1 - normalize(features) @ normalize(rows).T, labels, classes)
    squares = torch.cdist(features, rows).square() / rows.square().sum(1).clamp(min=1e-12)
    return -_nearest(squares, labels, classes)


def _by_divergence(logs: Tensor, labels: Tensor, rows: Tensor, classes: Tensor) -> Tensor:
    outputs, softmax = read_outputs(rows)
    uploaded = outputs if softmax else outputs.softmax(1)
    own = (uploaded * uploaded.clamp(min=1e-30).log()).sum(1)
    return -_nearest(own - logs @ uploaded.T, labels, classes)


def _nearest(distances: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Return the least distance ``(n,)`` to an anchor of the candidate's own class; infinite where there is none."""
    other = labels.cpu()[:, None] != classes
    return distances.masked_fill(other, torch.inf).amin(1)
