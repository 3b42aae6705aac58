"""Property inference: what an upload tells of a client's classes, such as which class it has most of.

Counts and label sets that are disclosed, in whichever round, are read off. Otherwise, by what is granted: shares of classes
by how far means deviate (:mod:`fedpriv.attacks.inference.member_counts`), by gradients or by changes of biases, and
comparisons of kernels or public outputs (:mod:`fedpriv.attacks.inference.property_features`); else a logistic regression on
features of uploads, learned from shadow clients (:mod:`fedpriv.attacks.inference.shadow_clients`) or, only with
``known="others"``, from all other clients of the federation, which then collude with the attacker.

Sources: Ateniese et al., "Hacking smart machines with smarter ones" (2015); Melis et al., "Exploiting unintended feature
leakage in collaborative learning" (IEEE S&P 2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from fedpriv.algebra.entanglement import Mechanism
from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.mean_uploads import AVERAGES, MEANS
from fedpriv.attacks.inference.member_counts import can_count_members, shares_by_counts
from fedpriv.attacks.inference.property_features import (
    Learned,
    can_mix_gradients,
    describe,
    has_head_bias,
    head_bias_delta,
    kernel_class_scores,
    public_logit_shares,
    shares_by_gradients,
)
from fedpriv.attacks.inference.shadow_clients import BATCH, LEAST_IMAGES, RATE, KnownClient, shadow_clients
from fedpriv.attacks.inputs.targets import Said, said
from fedpriv.attacks.inversion.surrogate import ShadowTraining
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Needs, Observation, RequirementsByKind
from fedpriv.datasets.types import Samples
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
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

Property = Literal["holds", "majority", "share"]

QUESTIONS: dict[str, str] = {
    "holds": "has the client any image of the class?",
    "majority": "is it the client's most frequent class?",
    "share": "does it make up more than the threshold of the client's images?",
}

IN_CLEAR = ("the upload itself", "the uploads of all rounds themselves")
"""Sources of disclosed answers: the attacked round, or any up to it."""

BY_DEVIATION = "how far uploads deviate from images of the attacker's own"
"""Source of answers by deviations."""

BY_GRADIENTS = "gradients of images of the attacker's own"
"""Source of answers by gradients."""

BY_BIASES = "the changes of the head's biases"
"""Source of answers by biases."""

CERTAIN = 1e6
"""Size of the score of disclosed answers, above and below all others."""

LEAST_CLIENTS = 3
"""Fewest clients whose uploads are compared, or learned from."""

Means = Literal["learned", "compared", "deviation", "gradients", "biases"]
"""What answers that are not disclosed are computed from."""


@dataclass(frozen=True, kw_only=True)
class Inquiry(Asked):
    """A question, and how it can be answered.

    Attributes:
        disclosed: client -> what it disclosed.
        certain: clients whose answer is disclosed.
        learns: whether there is anybody to learn the others' answers from.
        means: by which the others' answers are computed.
        compared: client -> classes and scores of kernels or public outputs; empty for other uploads.
    """

    question: Property = "holds"
    disclosed: Mapping[int, Said]
    certain: frozenset[int]
    learns: bool
    means: Means
    compared: Mapping[int, tuple[Tensor, Tensor]]


def are_outputs(uploads: Mapping[int, Observation]) -> bool:
    """True where uploads are outputs on public samples, not kernels."""
    return all(PUBLIC_OUTPUTS.first(seen.upload) is not None for seen in uploads.values())


@dataclass(frozen=True, kw_only=True)
class PropertyInference(Inference):
    """Answer a question about each class of a client.

    Attributes:
        question: ``holds`` (has the client any image of the class?), ``majority`` (is it the client's most frequent class?),
            ``share`` (does it make up more than ``threshold`` of the client's images?); ``auto`` asks for the majority where
            uploads name their classes and there is something to learn it from, and otherwise which classes are held.
        known: clients to learn from: ``shadow`` clients of the images which the card grants, if any, or all ``others`` of
            the federation, who tell how many images of each class they hold.
        threshold: of ``share``, in (0, 1).
        shadow_clients: their number.
        epochs: the most passes of a shadow client over its images.
        steps: the most steps of its training, of 16 images each; more teach no more.
        mechanism: of shadow clients' entangled uploads; the protocol is public.
        by: what answers that are not disclosed are computed from: ``auto`` for deviations or gradients where the card grants
            what these take, for ``biases`` of a head where it does not; otherwise ``learned``.
        encodings: of mixtures: ``sent``, so that they disclose classes, or ``hidden``, so that classes are learned from the
            mixture alone (the adaptive attack on ``hide-labels``).
    """

    question: Literal["auto", "holds", "majority", "share"] = "auto"
    known: Literal["shadow", "others"] = "shadow"
    threshold: Annotated[float, Gt(0), Lt(1)] = 0.3
    shadow_clients: Annotated[int, Ge(2)] = 32
    epochs: Annotated[int, Ge(1)] = 30
    steps: Annotated[int, Ge(1)] = 200
    mechanism: Mechanism = "RAP"
    by: Literal["auto", "learned", "biases"] = "auto"
    encodings: Literal["sent", "hidden"] = "sent"

    name = "property"
    version = 6
    summary = "scores of classes: which ones the client holds, or has most of"
    asks = "classes"
    reads_every_round = True
    most_rounds = 15
    targets = VECTORS | CLASS_OUTPUTS | TRAINED | ANSWERS
    requirements_by_kind: ClassVar[RequirementsByKind] = ((KERNELS, Needs(attacker_data=("same_domain",))),)
    needs_in_words: ClassVar[str] = (
        "nothing for what is sent in clear and for models and heads, of which it tells more with attacker_data=same_domain; "
        "else that, or other clients in league: option known=others"
    )

    def takes_extractor(self, kind: str, granted: KnowledgeCard) -> bool:
        """True where shares of classes are computed from deviations, or from gradients through what a client kept."""
        if granted.attacker_data != "same_domain" or not self._computes_shares(kind):
            return False
        by_query = granted.extractor == "query" and kind in AVERAGES | HEADS
        return kind not in WHOLE and (granted.extractor == "white_box" or by_query)

    def uses_rounds_on(self, kind: str) -> bool:
        """True of mixtures, which changing weights separate, and of trained weights."""
        return (kind in MIXTURES and self._computes_shares(kind)) or (kind in TRAINED and self._reads_weights)

    def _computes_shares(self, kind: str) -> bool:
        hidden = kind in MIXTURES and self.encodings == "hidden"
        return (self.by, self.known) == ("auto", "shadow") and kind in MEANS | TRAINED and not hidden

    @property
    def _reads_weights(self) -> bool:
        return self.by != "learned" and self.known == "shadow"

    def rounds_on(self, kind: str, card: KnowledgeCard) -> int:
        """Return the default number of rounds."""
        one_by_one = kind in TRAINED or self.takes_extractor(kind, card)
        return self.most_rounds if self.uses_rounds_on(kind) and one_by_one else 1

    def asked(self, disclosed: Sequence[Said]) -> Property:
        """Return the question, by what clients disclosed."""
        if self.question != "auto":
            return self.question
        return "holds" if any(client.classes is None for client in disclosed) else "majority"

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """Return the true answer for each class ``(C,)`` bool of a client with ``counts`` images ``(C,)``."""
        if question == "holds":
            return counts > 0
        return counts == counts.max() if question == "majority" else counts > self.threshold * counts.sum()

    def read_off(self, disclosed: Said, question: Property, n_classes: int) -> tuple[Tensor, Tensor] | None:
        """Return classes ``(k,)`` and scores ``(k,)`` of 0 and 1 where a client disclosed the answer; else None."""
        classes = torch.arange(n_classes)
        if disclosed.counts is not None:
            counts = torch.tensor([disclosed.counts.get(label, 0) for label in range(n_classes)])
            return classes, self.answers(counts, question).double()
        if question == "holds" and disclosed.classes is not None:
            return classes, torch.isin(classes, torch.tensor(disclosed.classes, dtype=torch.int64)).double()
        return None

    def learn(self, known: Sequence[KnownClient], question: Property, n_classes: int) -> Learned:
        """Fit the regression to at least one client with known answers; without positives or negatives it is constant."""
        numbers, truth = [], []
        for client in known:
            classes, rows = self._describe(client.observation, n_classes)
            numbers.append(rows)
            truth.append(self.answers(client.counts, question)[classes])
        table, wanted = torch.cat(numbers), torch.cat(truth)
        centre, scale = table.mean(0), table.std(0, unbiased=False).clamp_min(1e-9)
        weight, bias = torch.zeros(table.shape[1], dtype=torch.float64), 0.0
        if bool(wanted.any()) and not bool(wanted.all()):
            from sklearn.linear_model import LogisticRegression  # slow to import, and reports read this module

            fitted = LogisticRegression(class_weight="balanced", max_iter=2000)
            fitted.fit(((table - centre) / scale).numpy(), wanted.numpy())
            weight, bias = torch.from_numpy(np.asarray(fitted.coef_[0], dtype=np.float64)), float(fitted.intercept_[0])
        return Learned(centre, scale, weight, bias)

    def run(self, problem: InferenceProblem) -> Scores:
        """Answer the question about every client's classes; raises UserError where there is nothing to learn from."""
        asked, n_classes = self.ask(problem), problem.knowledge.n_classes
        shares, source = self._shares(problem, asked)
        learned: Mapping[int, Learned | None] = {}
        if shares is None:
            learned, source = self._learned(problem, asked)
        classes_of, scores = {}, {}
        for client, seen in problem.uploads.items():
            if client in asked.compared:
                classes, values = asked.compared[client]
            elif (certain := self.read_off(asked.disclosed[client], asked.question, n_classes)) is not None:
                classes, values = certain
            elif shares is not None:
                classes = asked.classes[client]
                own = shares[client][classes]
                values = own.log() - (-own).log1p() if asked.question == "share" else own.log()
            else:
                classes, values = self.score(seen, asked.question, n_classes, learned.get(client))
            classes_of[client] = classes
            scores[client] = (2 * values - 1) * CERTAIN if client in asked.certain else values
        if asked.compared and are_outputs(problem.uploads):
            shares = {client: values.softmax(0) for client, values in scores.items()}
        others = self.colludes and len(asked.certain) < len(scores)
        return Scores(
            replace(asked, classes=classes_of),
            scores,
            shares={} if shares is None or asked.means == "biases" else shares,
            source=source,
            colluders="all other clients" if others else "",
        )

    def _shares(self, problem: InferenceProblem, asked: Inquiry) -> tuple[dict[int, Tensor] | None, str]:
        """Return shares of classes by client, and their source; None where answers are disclosed, compared or learned."""
        some, shares = _partly_disclosed(asked), None
        if len(asked.certain) < len(problem.uploads):
            if asked.means == "gradients":
                return shares_by_gradients(problem), some + BY_GRADIENTS
            if asked.means == "biases":
                deltas = head_bias_delta(problem)
                return {client: delta.softmax(0) for client, delta in deltas.items()}, some + BY_BIASES
            if asked.means == "deviation":
                shares = shares_by_counts(problem)
                if shares is None:
                    self._refuse_teachers(problem.knowledge, len(problem.uploads), bool(asked.certain), asked.question)
        return shares, some + BY_DEVIATION

    def score(
        self, observation: Observation, question: Property, n_classes: int, learned: Learned | None
    ) -> tuple[Tensor, Tensor]:
        """Return classes ``(k,)`` and log-odds of each ``(k,)``, float64; all the same without anything learned."""
        classes, rows = self._describe(observation, n_classes)
        odds = torch.zeros(len(rows), dtype=torch.float64) if learned is None else learned(rows)
        # One class of a client has the majority, so its classes compete with one another.
        return classes, odds.log_softmax(0) if question == "majority" else odds

    def _describe(self, observation: Observation, n_classes: int) -> tuple[Tensor, Tensor]:
        return describe(observation, n_classes, hidden=self.encodings == "hidden")

    @property
    def colludes(self) -> bool:
        """True where other clients tell it how many images of each class they have."""
        return self.known == "others"

    def ask(self, problem: InferenceProblem) -> Inquiry:
        """Settle the question and how it is answered, before anything is computed."""
        uploads, knowledge, disclosed = problem.uploads, problem.knowledge, problem.said()
        if self.encodings == "hidden" and all(MIXTURES.first(seen.upload) is not None for seen in uploads.values()):
            disclosed = dict.fromkeys(disclosed, Said(None, None))
        n_classes, question = knowledge.n_classes, self.asked(list(disclosed.values()))

        def in_clear(asked: Property) -> frozenset[int]:
            return frozenset(k for k in disclosed if self.read_off(disclosed[k], asked, n_classes) is not None)

        learns = self.colludes or knowledge.public_labels is not None
        if self.question == "auto" and not learns and not in_clear(question) and in_clear("holds"):
            question = "holds"
        certain = in_clear(question)
        compared = self._compared(problem)
        means = "compared" if compared else self._means(problem)
        if len(certain) < len(uploads) and means == "learned":
            self._refuse_teachers(knowledge, len(uploads), bool(certain), question)
        classes = {}
        for client, seen in uploads.items():
            if client in compared:
                classes[client] = compared[client][0]
            else:
                everything = client in certain or means in ("gradients", "biases")
                classes[client] = torch.arange(n_classes) if everything else self._describe(seen, n_classes)[0]
        return Inquiry(
            classes=classes,
            question=question,
            threshold=self.threshold if question == "share" else None,
            disclosed=disclosed,
            certain=certain,
            learns=learns,
            means=means,
            compared=compared,
        )

    def _means(self, problem: InferenceProblem) -> Means:
        """Return the means of answers that are neither disclosed nor compared."""
        uploads, card = list(problem.uploads.values()), problem.knowledge.card
        means = [MEANS.first(seen.upload) for seen in uploads]
        granted = all(one is not None and self.takes_extractor(one.kind, card) for one in means)
        if granted and can_count_members(problem):
            return "deviation"
        weights = self._reads_weights and all(TRAINED.first(seen.upload) is not None for seen in uploads)
        if weights and self.by == "auto" and can_mix_gradients(problem):
            return "gradients"
        if weights and has_head_bias(problem):
            return "biases"
        if self.by == "biases":
            raise UserError("property: by=biases needs uploads of a model or head that was broadcast too; drop it")
        return "learned"

    def _compared(self, problem: InferenceProblem) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return classes and scores of kernels or public outputs, by client; empty for other uploads."""
        uploads, knowledge = problem.uploads, problem.knowledge
        if not all(ANSWERS.first(seen.upload) is not None for seen in uploads.values()):
            return {}
        what = "public outputs" if are_outputs(uploads) else "kernels"
        if self.colludes:
            raise UserError(f"property: {what} are compared with one another, nothing is learned; drop known=others")
        if len(uploads) < LEAST_CLIENTS:
            raise UserError(
                f"property: {len(uploads)} client(s), so too few {what} to compare; expected at least {LEAST_CLIENTS}"
            )
        if are_outputs(uploads):
            shares = public_logit_shares(uploads)
            return {client: (torch.arange(len(scores)), scores) for client, scores in shares.items()}
        if knowledge.public_images is None or knowledge.public_labels is None:
            granted = argument("knowledge", {"attacker_data": "same_domain"})
            raise UserError(f"property: classes of the public images are not known; pass {granted}")
        return kernel_class_scores(uploads, knowledge.public_images, knowledge.public_labels, knowledge.n_classes)

    def _refuse_teachers(self, knowledge: Knowledge, n_clients: int, some_certain: bool, question: Property) -> None:
        """Refuse where answers are not disclosed and there is nobody to learn them from."""
        public = knowledge.public_labels
        if self.colludes:
            if n_clients < LEAST_CLIENTS:
                raise UserError(
                    f"property: {n_clients} client(s), so too few others to learn from; expected at least "
                    f"{LEAST_CLIENTS}, or {_own_images()} to make clients up"
                )
        elif public is not None:
            if len(public) < LEAST_IMAGES:
                raise UserError(
                    f"property: {len(public)} images to make clients of; expected at least {LEAST_IMAGES}; train with "
                    f"{argument('public')} N"
                )
        elif not some_certain:
            raise UserError(
                f"property: no stored upload says in clear what is asked ({QUESTIONS[question]}), and the attacker knows "
                f"nobody to learn it from; pass {_own_images()}, or, for an attacker in league with all other clients, "
                f"{argument('attack_option', {'property.known': 'others'})}"
            )

    def _learned(self, problem: InferenceProblem, asked: Inquiry) -> tuple[dict[int, Learned | None], str]:
        """Return the regression for each client, and where it was learned."""
        knowledge, uploads = problem.knowledge, problem.uploads
        n_classes = knowledge.n_classes
        learned: dict[int, Learned | None] = dict.fromkeys(uploads)
        if asked.compared:
            return learned, f"the other {'public outputs' if are_outputs(uploads) else 'kernels'} of the round"
        if len(asked.certain) == len(uploads):
            newest = (said((seen.upload,)) for seen in uploads.values())
            at_once = all(self.read_off(one, asked.question, n_classes) is not None for one in newest)
            return learned, IN_CLEAR[0] if at_once else IN_CLEAR[1]
        some = _partly_disclosed(asked)
        if not asked.learns:
            return learned, f"{some}nothing for the others"
        if self.colludes:
            all_known = {k: KnownClient(seen, problem.colluders[k]) for k, seen in uploads.items()}
            for k in uploads:
                rest = [one for other, one in all_known.items() if other != k]
                learned[k] = self.learn(rest, asked.question, n_classes)
            return learned, f"{some}the {len(uploads) - 1} other clients, in league with the attacker"
        assert knowledge.public_images is not None
        assert knowledge.public_labels is not None
        simulated = shadow_clients(
            next(seen for k, seen in uploads.items() if k not in asked.certain),
            Samples(knowledge.public_images, knowledge.public_labels),
            n_classes,
            self.shadow_clients,
            problem.seed,
            training=ShadowTraining(epochs=self.epochs, batch_size=BATCH, learning_rate=RATE, steps=self.steps),
            mechanism=self.mechanism,
            batch=knowledge.batch,
        )
        known = []
        for client in simulated:
            known.append(client)
            if problem.progress is not None:
                problem.progress(len(known), self.shadow_clients)
        fitted = self.learn(known, asked.question, n_classes)
        return dict.fromkeys(uploads, fitted), f"{some}{len(known)} shadow clients"


def _partly_disclosed(asked: Inquiry) -> str:
    return f"{IN_CLEAR[1]} of {len(asked.certain)} clients, and " if asked.certain else ""


def _own_images() -> str:
    """Return the arguments that grant the attacker images for shadow clients."""
    return f"{argument('knowledge', {'attacker_data': 'same_domain'})} and {argument('public')} N"
