"""Membership inference: was this very image among those that a client's upload was computed from?

It returns no image but a score for each candidate, higher for likelier members, from the upload and the client's
extractor g. No shadow federation is trained. Of vectors and class outputs the score holds a distance against the same
candidate's distances from the other clients' uploads, each under its own extractor
(:mod:`fedpriv.attacks.infer.membership_null`); with ``null=none``, or where nobody else uploaded, it is minus the distance.
The distances, and what else is scored:

- prototypes: ||g(x) - p_y||^2 / ||p_y||^2, with p_y the uploaded prototype of the candidate's class
  (or one less the cosine between them);
- representations: the same with the nearest uploaded row of the class; zero for a member;
- an entangled vector: the same with the one vector, for classes that its label encoding gives weight;
- class outputs: KL(u_y || softmax(head(g(x)))), with u_y the uploaded mean output of the class;
- a kernel over public images: the self-similarity that ridge regression over pixels extrapolates to x from the kernel's
  diagonal. The kernel holds nothing computed from private images, so this is expected to tell nothing;
- outputs on public samples: what ridge regression over pixels makes of the client's log outputs at (x, y), less the same of
  the other clients; see :mod:`fedpriv.attacks.infer.membership_public`;
- trained weights (models, extractors, classifiers, angle matrices): how much training lowered the candidate's loss, or how
  much the update resembles its gradient; see :mod:`fedpriv.attacks.infer.membership_update`.

A candidate of a class that the upload does not speak of cannot be a member: minus infinity. Which classes a client holds is
read off (:mod:`fedpriv.attacks.read.disclosed_labels`), exactly, wherever an upload carries ids, counts or weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import normalize

from fedpriv.attacks.infer.contract import Candidates, Inference, InferenceProblem, Scores
from fedpriv.attacks.infer.membership_null import beside_others
from fedpriv.attacks.infer.membership_public import public_scores
from fedpriv.attacks.infer.membership_update import ClassEvaluator, update_scores
from fedpriv.attacks.observation import Knowledge, Needs, Observation, RequirementsByKind
from fedpriv.attacks.read.class_outputs import is_distribution
from fedpriv.attacks.read.extractors import represent
from fedpriv.attacks.read.public_outputs import extrapolate
from fedpriv.attacks.read.target_features import upload_holds
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.wire.kinds import ANSWERS, BESIDE_A_HEAD, CLASS_OUTPUTS, KERNELS, PUBLIC_OUTPUTS, TRAINED, VECTORS, WHOLE
from fedpriv.wire.payloads import ClassLogits, Kernel, PublicImages, find_payload

COMPARED = VECTORS | CLASS_OUTPUTS
"""Payloads that candidates are compared with as they were uploaded."""


@dataclass(frozen=True, kw_only=True)
class MembershipInference(Inference):
    """Score candidates by how near they are to what was uploaded.

    Attributes:
        candidates: how many members, and as many non-members, are tried for each client at most.
        score: nearness of vectors: by the relative squared distance, or by the cosine of the angle. Trained weights, class
            outputs and kernels have no such choice.
        null: what a distance is held against: the same candidate's distances from the other ``clients``' uploads, or
            ``none``. Trained weights, kernels and outputs on public samples have no such choice.
        judge: of trained weights: the ``gradient`` that the update resembles, or the ``loss`` that fell.
        classes: of mixtures: ``sent``, those that the label encoding gives weight, or ``any``: encodings that hide weights
            rule nobody out (the answer to ``hide-labels``).
    """

    candidates: Annotated[int, Ge(1)] = 100
    score: Literal["distance", "cosine"] = "distance"
    null: Literal["clients", "none"] = "clients"
    judge: ClassEvaluator = "gradient"
    classes: Literal["sent", "any"] = "sent"

    name = "membership"
    summary = "scores of candidate images: which ones the client trained on"
    asks = "images"
    targets = COMPARED | ANSWERS | TRAINED
    needs = Needs(extractor=("white_box", "query"))
    requirements_by_kind: ClassVar[RequirementsByKind] = (
        (KERNELS | WHOLE, Needs()),
        (PUBLIC_OUTPUTS, Needs(attacker_data=("same_domain",))),
        (BESIDE_A_HEAD, Needs(extractor=("white_box",))),
    )

    @property
    def n_candidates(self) -> int:
        """Members, and as many non-members, that are tried for each client at most."""
        return self.candidates

    def run(self, problem: InferenceProblem) -> Scores:
        """Score the candidates of every client."""
        uploads = problem.uploads
        if problem.kind is not None and problem.kind in PUBLIC_OUTPUTS:
            return Scores(self.ask(problem), public_scores(uploads, problem.candidates, problem.knowledge))
        return Scores(
            self.ask(problem),
            {client: self._scores(problem, uploads, asked) for client, asked in problem.candidates.items()},
        )

    def _scores(self, problem: InferenceProblem, uploads: Mapping[int, Observation], asked: Candidates) -> Tensor:
        own = self.likeness(uploads[asked.client], asked, problem.knowledge, problem.kind)
        others = [
            -self.likeness(seen, replace(asked, client=other), problem.knowledge, problem.kind)
            for other, seen in uploads.items()
            if self.null == "clients" and self._stands_beside(problem, uploads[asked.client], seen)
        ]
        return beside_others(-own, others) if others else own

    def _stands_beside(self, problem: InferenceProblem, own: Observation, seen: Observation) -> bool:
        """True for another client's upload that candidates can be held against as against the client's own.

        Behind secure aggregation all clients' uploads are one and the same, and no null.
        """
        if seen.client == own.client or seen.client not in problem.knowledge.extractors:
            return False
        if problem.kind is not None and problem.kind not in COMPARED:
            return False
        first, second = COMPARED.first(own.upload), COMPARED.first(seen.upload)
        if first is None or second is None:
            return False
        if first.kind in CLASS_OUTPUTS and seen.client not in problem.knowledge.heads:
            return False
        mine, theirs = first.rows(), second.rows()
        return mine.shape != theirs.shape or not torch.equal(mine, theirs)

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
            return update_scores(
                observation, candidates.client, candidates.images, candidates.labels, knowledge, self.judge
            )
        kernel = find_payload(observation.upload, Kernel) if kind is None or kind in KERNELS else None
        if kernel is not None:
            return _from_kernel(kernel, observation, candidates)
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
    uploaded = rows if is_distribution(rows) else rows.softmax(1)
    own = (uploaded * uploaded.clamp(min=1e-30).log()).sum(1)
    return -_nearest(own - logs @ uploaded.T, labels, classes)


def _nearest(distances: Tensor, labels: Tensor, classes: Tensor) -> Tensor:
    """Return the least distance ``(n,)`` to an anchor of the candidate's own class; infinite where there is none."""
    other = labels.cpu()[:, None] != classes
    return distances.masked_fill(other, torch.inf).amin(1)


def _from_kernel(kernel: Kernel, observation: Observation, candidates: Candidates) -> Tensor:
    sent = find_payload(observation.broadcast, PublicImages)
    if sent is None:
        raise UserError(f"broadcast of round {observation.round}: holds no public images; a kernel is about some")
    asked = sent.images[-len(kernel.matrix) :]
    wanted = kernel.matrix.diagonal().double().cpu()
    return extrapolate(asked, (wanted - wanted.mean())[:, None], candidates.images)[:, 0]
