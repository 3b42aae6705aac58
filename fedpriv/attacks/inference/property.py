"""Property inference: what an upload tells of a client's classes, such as which class it has most of.

Counts and label sets that are disclosed, in whichever round, are read off. Otherwise, by what is granted: shares of classes
by how far means deviate (:mod:`fedpriv.attacks.inference.member_counts`), by gradients or by changes of biases, and
comparisons of kernels or public outputs (:mod:`fedpriv.attacks.inference.property_features`); else of means and mixtures a
logistic regression, learned from shadow clients (:mod:`fedpriv.attacks.inference.shadow_clients`).

Sources: Ateniese et al., "Hacking smart machines with smarter ones" (2015); Melis et al., "Exploiting unintended feature
leakage in collaborative learning" (IEEE S&P 2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from fedpriv.algebra.entanglement import Mechanism
from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.mean_uploads import AVERAGES, MEANS
from fedpriv.attacks.inference.member_counts import can_count_members, shares_by_counts
from fedpriv.attacks.inference.property_features import (
    can_mix_gradients,
    has_head_bias,
    head_bias_delta,
    kernel_class_scores,
    public_logit_shares,
    shares_by_gradients,
)
from fedpriv.attacks.inference.shadow_clients import (
    BATCH,
    LEAST_IMAGES,
    RATE,
    Learned,
    describe,
    learn,
    shadow_clients,
)
from fedpriv.attacks.inputs.targets import Said, held_classes, said, upload_holds
from fedpriv.attacks.inversion.surrogate import ShadowTraining
from fedpriv.attacks.observation import Needs, Observation, RequirementsByKind, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.util.errors import UserError, shown
from fedpriv.wire.kinds import (
    ANSWERS,
    CLASS_OUTPUTS,
    HEADS,
    KERNELS,
    MIXTURES,
    PUBLIC_OUTPUTS,
    TRAINED,
    VECTORS,
    WHOLE,
)

Property = Literal["holds", "majority"]
Means = Literal["learned", "deviation", "gradients", "biases"]

QUESTIONS: dict[str, str] = {
    "holds": "has the client any image of the class?",
    "majority": "is it the client's most frequent class?",
}

IN_CLEAR = ("the upload itself", "the uploads of all rounds themselves")
"""Sources of disclosed answers: the attacked round, or any up to it."""

BY_DEVIATION = "how far uploads deviate from images of the attacker's own"
BY_GRADIENTS = "gradients of images of the attacker's own"
BY_BIASES = "the changes of the head's biases"

CERTAIN = 1e6
"""Size of the score of disclosed answers, above and below all others."""

LEAST_CLIENTS = 3
"""Fewest clients whose uploads are compared."""

EPOCHS = 30
"""The most passes of a shadow client over its images."""


@dataclass(frozen=True, kw_only=True)
class Inquiry(Asked):
    """A question, and how it can be answered.

    Attributes:
        disclosed: client -> what it disclosed.
        certain: clients whose answer is disclosed.
        means: by which the others' answers are computed.
        compared: client -> classes and scores of kernels or public outputs; empty for other uploads.
    """

    question: Property = "holds"
    disclosed: Mapping[int, Said]
    certain: frozenset[int]
    means: Means
    compared: Mapping[int, tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class PropertyInference(Inference):
    """Answer a question about each class of a client.

    Attributes:
        question: ``holds`` (has the client any image of the class?) or ``majority`` (is it its most frequent class?);
            ``auto`` asks for the majority where uploads name their classes and there is something to learn it from, and
            otherwise which classes are held.
        shadow_clients: their number, where answers are learned.
        steps: the most steps of the training of one, of 16 images each; more teach no more.
        mechanism: of shadow clients' entangled uploads; the protocol is public.
        encodings: of mixtures: ``sent``, so that they disclose classes, or ``hidden``, so that classes are learned from the
            mixture alone (the adaptive attack on ``hide-labels``).
    """

    question: Literal["auto", "holds", "majority"] = "auto"
    shadow_clients: Annotated[int, Ge(2)] = 32
    steps: Annotated[int, Ge(1)] = 200
    mechanism: Mechanism = "RAP"
    encodings: Literal["sent", "hidden"] = "sent"

    name = "property"
    version = 8
    summary = "scores of classes: which ones the client holds, or has most of"
    asks = "classes"
    reads_every_round = True
    most_rounds = 15
    targets = VECTORS | CLASS_OUTPUTS | TRAINED | ANSWERS
    requirements_by_kind: ClassVar[RequirementsByKind] = ((KERNELS, Needs(attacker_data=("same_domain",))),)
    needs_in_words: ClassVar[str] = (
        "nothing for what is sent in clear and for models and heads, of which it tells more with attacker_data=same_domain; "
        "else that"
    )

    def takes_extractor(self, kind: str, granted: ThreatModel) -> bool:
        """True where shares of classes are computed from deviations, or from gradients through what a client kept."""
        if granted.attacker_data != "same_domain" or not self._computes_shares(kind):
            return False
        by_query = granted.extractor == "query" and kind in AVERAGES | HEADS
        return kind not in WHOLE and (granted.extractor == "white_box" or by_query)

    def uses_rounds_on(self, kind: str) -> bool:
        """True of mixtures, which changing weights separate, and of trained weights."""
        return kind in MIXTURES | TRAINED and self._computes_shares(kind)

    def _computes_shares(self, kind: str) -> bool:
        return kind in MEANS | TRAINED and not (kind in MIXTURES and self.encodings == "hidden")

    def rounds_on(self, kind: str, card: ThreatModel) -> int:
        """Return the default number of rounds."""
        one_by_one = kind in TRAINED or self.takes_extractor(kind, card)
        return self.most_rounds if self.uses_rounds_on(kind) and one_by_one else 1

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """Return the true answer for each class ``(C,)`` bool of a client with ``counts`` images ``(C,)``."""
        return counts > 0 if question == "holds" else counts == counts.max()

    def read_off(self, disclosed: Said, question: Property, n_classes: int) -> Tensor | None:
        """Return a score ``(C,)`` of 0 or 1 for each class where a client disclosed the answer; else None."""
        if disclosed.counts is not None:
            counts = torch.tensor([disclosed.counts.get(label, 0) for label in range(n_classes)])
            return self.answers(counts, question).double()
        if question == "holds" and disclosed.classes is not None:
            return torch.isin(torch.arange(n_classes), torch.tensor(disclosed.classes, dtype=torch.int64)).double()
        return None

    def score(
        self, observation: Observation, question: Property, n_classes: int, learned: Learned | None
    ) -> tuple[Tensor, Tensor]:
        """Return classes ``(k,)`` and log-odds of each ``(k,)``, float64; all the same without anything learned."""
        if learned is None:
            classes = self._named(observation, n_classes)
            return classes, torch.zeros(len(classes), dtype=torch.float64)
        classes, rows = describe(observation, n_classes, hidden=self.encodings == "hidden")
        # One class of a client has the majority, so its classes compete with one another.
        return classes, learned(rows).log_softmax(0) if question == "majority" else learned(rows)

    def _named(self, seen: Observation, n_classes: int) -> Tensor:
        """Return the classes that an upload names, or all."""
        hidden = self.encodings == "hidden" and MIXTURES.first(seen.upload) is not None
        named = None if hidden else held_classes(seen.upload)
        return torch.arange(n_classes) if named is None else torch.tensor(named, dtype=torch.int64)

    def run(self, problem: InferenceProblem) -> Scores:
        """Answer the question about every client's classes; raises UserError where there is nothing to learn from."""
        requested, n_classes = self.ask(problem), problem.knowledge.n_classes
        shares, learned, source = self._compute(problem, requested)
        classes_of, scores = {}, {}
        for client, seen in problem.uploads.items():
            classes = requested.classes[client]
            certain = self.read_off(requested.disclosed[client], requested.question, n_classes)
            if client in requested.compared:
                values = requested.compared[client][1]
            elif certain is not None:
                values = (2 * certain - 1) * CERTAIN
            elif shares is not None:
                values = shares[client][classes].log()
            else:
                classes, values = self.score(seen, requested.question, n_classes, learned)
            classes_of[client], scores[client] = classes, values
        if requested.compared and _are_outputs(problem):
            shares = {client: values.softmax(0) for client, values in scores.items()}
        details = {} if shares is None or requested.means == "biases" else shares
        return Scores(replace(requested, classes=classes_of), scores, source, shares=details)

    def _compute(
        self, problem: InferenceProblem, inquiry: Inquiry
    ) -> tuple[dict[int, Tensor] | None, Learned | None, str]:
        """Return shares of classes by client, or what was learned, or neither, and their source."""
        uploads, knowledge = problem.uploads, problem.knowledge
        if inquiry.compared:
            return None, None, f"the other {'public outputs' if _are_outputs(problem) else 'kernels'} of the round"
        if len(inquiry.certain) == len(uploads):
            newest = (said((seen.upload,)) for seen in uploads.values())
            at_once = all(self.read_off(item, inquiry.question, knowledge.n_classes) is not None for item in newest)
            return None, None, IN_CLEAR[0] if at_once else IN_CLEAR[1]
        some = f"{IN_CLEAR[1]} of {len(inquiry.certain)} clients, and " if inquiry.certain else ""
        if inquiry.means == "gradients":
            return shares_by_gradients(problem), None, some + BY_GRADIENTS
        if inquiry.means == "biases":
            return {k: delta.softmax(0) for k, delta in head_bias_delta(problem).items()}, None, some + BY_BIASES
        shares = shares_by_counts(problem) if inquiry.means == "deviation" else None
        if shares is not None:
            return shares, None, some + BY_DEVIATION
        like = next(seen for client, seen in uploads.items() if client not in inquiry.certain)
        self._refuse_unlearnable(problem, like, inquiry.question, bool(inquiry.certain))
        if knowledge.public_images is None or knowledge.public_labels is None:
            return None, None, f"{some}nothing for the others"
        simulated = shadow_clients(
            like,
            Samples(knowledge.public_images, knowledge.public_labels),
            knowledge.n_classes,
            self.shadow_clients,
            problem.seed,
            training=ShadowTraining(epochs=EPOCHS, batch_size=BATCH, learning_rate=RATE, steps=self.steps),
            mechanism=self.mechanism,
        )
        described, counts = [], []
        for seen, count in simulated:
            described.append(describe(seen, knowledge.n_classes, hidden=self.encodings == "hidden"))
            counts.append(count)
            if problem.progress is not None:
                problem.progress(len(counts), self.shadow_clients)
        learned = learn(described, counts, lambda count: self.answers(count, inquiry.question))
        return None, learned, f"{some}{len(counts)} shadow clients"

    def ask(self, problem: InferenceProblem) -> Inquiry:
        """Settle the question and how it is answered, before anything is computed."""
        uploads, knowledge, disclosed = problem.uploads, problem.knowledge, problem.said()
        if self.encodings == "hidden" and all(MIXTURES.first(seen.upload) is not None for seen in uploads.values()):
            disclosed = dict.fromkeys(disclosed, Said(None, None))
        n_classes, means, compared = knowledge.n_classes, self._means(problem), self._compared(problem)

        def in_clear(question: Property) -> frozenset[int]:
            return frozenset(k for k in disclosed if self.read_off(disclosed[k], question, n_classes) is not None)

        if self.question != "auto":
            question: Property = self.question
        elif any(client.classes is None for client in disclosed.values()):
            question = "holds"
        else:
            computed = means != "learned" or all(_learnable(seen) for seen in uploads.values())
            learns = (knowledge.public_labels is not None and computed) or bool(in_clear("majority"))
            question = "majority" if learns or not in_clear("holds") else "holds"
        certain = in_clear(question)
        if not compared and means == "learned":
            for client, seen in uploads.items():
                if client not in certain:
                    self._refuse_unlearnable(problem, seen, question, bool(certain))
        classes = {}
        for client, seen in uploads.items():
            if client in compared:
                classes[client] = compared[client][0]
            else:
                everything = client in certain or means in ("gradients", "biases")
                classes[client] = torch.arange(n_classes) if everything else self._named(seen, n_classes)
        return Inquiry(
            classes=classes, question=question, disclosed=disclosed, certain=certain, means=means, compared=compared
        )

    def _means(self, problem: InferenceProblem) -> Means:
        """Return the means of answers that are neither disclosed nor compared."""
        uploads, card = list(problem.uploads.values()), problem.knowledge.card
        means = [MEANS.first(seen.upload) for seen in uploads]
        granted = all(mean is not None and self.takes_extractor(mean.kind, card) for mean in means)
        if granted and can_count_members(problem):
            return "deviation"
        if all(TRAINED.first(seen.upload) is not None for seen in uploads):
            if can_mix_gradients(problem):
                return "gradients"
            if has_head_bias(problem):
                return "biases"
        return "learned"

    def _compared(self, problem: InferenceProblem) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return classes and scores of kernels or public outputs, by client; empty for other uploads."""
        uploads, knowledge = problem.uploads, problem.knowledge
        if not all(ANSWERS.first(seen.upload) is not None for seen in uploads.values()):
            return {}
        what = "public outputs" if _are_outputs(problem) else "kernels"
        if len(uploads) < LEAST_CLIENTS:
            raise UserError(
                f"property: {len(uploads)} client(s), so too few {what} to compare; expected at least {LEAST_CLIENTS}"
            )
        if _are_outputs(problem):
            shares = public_logit_shares(uploads)
            return {client: (torch.arange(len(scores)), scores) for client, scores in shares.items()}
        if knowledge.public_images is None or knowledge.public_labels is None:
            granted = f"knowledge={shown({'attacker_data': 'same_domain'})}"
            raise UserError(f"property: classes of the public images are not known; pass {granted}")
        return kernel_class_scores(uploads, knowledge.public_images, knowledge.public_labels, knowledge.n_classes)

    def _refuse_unlearnable(
        self, problem: InferenceProblem, seen: Observation, question: Property, some_certain: bool
    ) -> None:
        """Refuse an upload whose answer is not disclosed where it cannot be learned."""
        public = problem.knowledge.public_labels
        if public is None and not some_certain:
            raise UserError(
                f"property: no stored upload says in clear what is asked ({QUESTIONS[question]}), and the attacker has "
                f"nothing to learn it from; pass knowledge={shown({'attacker_data': 'same_domain'})} and public N"
            )
        if public is not None and len(public) < LEAST_IMAGES:
            raise UserError(
                f"property: {len(public)} images to make clients of; expected at least {LEAST_IMAGES}; train with public N"
            )
        if public is not None and not _learnable(seen):
            raise UserError(
                f"property: {upload_holds(seen)}; {QUESTIONS[question]} is learned from prototypes and entangled vectors"
            )


def _learnable(seen: Observation) -> bool:
    return AVERAGES.first(seen.upload) is not None


def _are_outputs(problem: InferenceProblem) -> bool:
    """True where uploads are outputs on public samples, not kernels."""
    return all(PUBLIC_OUTPUTS.first(seen.upload) is not None for seen in problem.uploads.values())
