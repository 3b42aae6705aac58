"""Property inference: what does an upload tell of a client as a whole, such as which class it has most of?

Counts and label sets that travel in clear, in whichever round, are read off. Everything else is learned: a logistic
regression on what uploads say about each class (:mod:`fedpriv.attacks.infer.property_features`), from clients of which the
answer is known. Those are clients that the attacker makes up of its own images
(:mod:`fedpriv.attacks.infer.shadow_clients`), or,
only where ``known="others"`` says so, all other clients of the federation, which are then in league with it. Class means and
mixtures of several rounds tell how many images they are of by how far they deviate from images of the attacker's own
(:mod:`fedpriv.attacks.infer.member_counts`), where these and extractors are granted. Kernels over
public images, and outputs on them, are compared with one another, and nothing is learned
(:mod:`fedpriv.attacks.infer.kernel_classes`, :mod:`fedpriv.attacks.infer.answer_classes`).

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
from fedpriv.attacks.infer import answer_classes, kernel_classes
from fedpriv.attacks.infer.bias_rises import has_biases, rises
from fedpriv.attacks.infer.contract import Inference, InferenceProblem, Scores
from fedpriv.attacks.infer.member_counts import countable, counted_shares
from fedpriv.attacks.infer.property_features import Learned, describe
from fedpriv.attacks.infer.property_question import (
    BY_BIASES,
    BY_DEVIATION,
    BY_GRADIENTS,
    CERTAIN,
    IN_CLEAR,
    QUESTIONS,
    Inquiry,
    Means,
    Property,
    answers,
    are_outputs,
    odds,
    read_off,
)
from fedpriv.attacks.infer.sent_means import AVERAGES, MEANS
from fedpriv.attacks.infer.shadow_clients import BATCH, LEAST_IMAGES, RATE, KnownClient, shadow_clients
from fedpriv.attacks.infer.update_shares import followable, followed_shares
from fedpriv.attacks.inputs.targets import Said, said
from fedpriv.attacks.invert.shadow import ShadowTraining
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
    TRAINED,
    VECTORS,
    WHOLE,
)

LEAST_CLIENTS = 3


@dataclass(frozen=True, kw_only=True)
class PropertyInference(Inference):
    """Answer a question about each class of a client.

    Attributes:
        question: ``holds`` (has the client any image of the class?), ``majority`` (is it the client's most frequent class?),
            ``share`` (does it make up more than ``threshold`` of the client's images?); ``auto`` asks for the majority
            where uploads name their classes, and otherwise which classes are held. Where there is nobody to learn the
            majority from, it asks for the classes that uploads name.
        known: of whom the attacker knows the answer: ``shadow`` clients that it makes of the images which the card grants,
            if any, or all ``others`` of the federation, who tell it how many images of each class they hold.
        threshold: of ``share``, in (0, 1).
        shadow_clients: clients made up of the attacker's own images, where the card grants some.
        epochs: passes of a shadow client over its images, at most.
        steps: steps of its training, of 16 images each, at most: more take longer and teach no more.
        mechanism: of shadow clients' entangled uploads; the protocol is public.
        penalty: strength of the regression's L2 penalty.
        by: what answers are told by where uploads do not say them: ``auto`` for how far class means and mixtures deviate
            from what is expected, or of which gradients of classes a change of weights is a mixture, where the card grants
            labelled images of the clients' domain and what else that takes; for the changes of ``biases`` of a head where
            it does not; and otherwise ``learned`` from clients of which the answer is known.
        encodings: of mixtures: ``sent``, so that they name classes in clear, or ``hidden``: they say nothing, and which
            classes a client holds is learned from the mixture alone (the answer to ``hide-labels``).
    """

    question: Literal["auto", "holds", "majority", "share"] = "auto"
    known: Literal["shadow", "others"] = "shadow"
    threshold: Annotated[float, Gt(0), Lt(1)] = 0.3
    shadow_clients: Annotated[int, Ge(2)] = 32
    epochs: Annotated[int, Ge(1)] = 30
    steps: Annotated[int, Ge(1)] = 200
    mechanism: Mechanism = "RAP"
    penalty: Annotated[float, Gt(0)] = 1.0
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
        """True where deviations, or gradients through what a client kept, may tell shares of classes."""
        if granted.attacker_data != "same_domain" or not self._tells(kind):
            return False
        by_query = granted.extractor == "query" and kind in AVERAGES | HEADS
        return kind not in WHOLE and (granted.extractor == "white_box" or by_query)

    def uses_rounds_on(self, kind: str) -> bool:
        """True of mixtures, which weights that change take apart, and of trained weights, of which each round tells."""
        return (kind in MIXTURES and self._tells(kind)) or (kind in TRAINED and self._reads_weights)

    def _tells(self, kind: str) -> bool:
        hidden = kind in MIXTURES and self.encodings == "hidden"
        return (self.by, self.known) == ("auto", "shadow") and kind in MEANS | TRAINED and not hidden

    @property
    def _reads_weights(self) -> bool:
        return self.by != "learned" and self.known == "shadow"

    def rounds_on(self, kind: str, card: KnowledgeCard) -> int:
        """Return the number of rounds where nobody says how many."""
        one_by_one = kind in TRAINED or self.takes_extractor(kind, card)
        return self.most_rounds if self.uses_rounds_on(kind) and one_by_one else 1

    def asked(self, told: Sequence[Said]) -> Property:
        """Return the question that clients are asked, by what they said in clear."""
        if self.question != "auto":
            return self.question
        return "holds" if any(client.classes is None for client in told) else "majority"

    def answers(self, counts: Tensor, question: str) -> Tensor:
        """Return the true answer for each class ``(C,)`` bool of a client with ``counts`` images ``(C,)``."""
        return answers(counts, question, self.threshold)

    def read_off(self, told: Said, question: Property, n_classes: int) -> tuple[Tensor, Tensor] | None:
        """Return classes ``(k,)`` and certain scores ``(k,)`` where a client gave the answer in clear; else None."""
        return read_off(told, question, n_classes, self.threshold)

    def learn(self, known: Sequence[KnownClient], question: Property, n_classes: int) -> Learned:
        """Fit the regression to at least one client whose answers are known; it says one thing where all say the same."""
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

            fitted = LogisticRegression(C=1 / self.penalty, class_weight="balanced", max_iter=2000)
            fitted.fit(((table - centre) / scale).numpy(), wanted.numpy())
            weight, bias = torch.from_numpy(np.asarray(fitted.coef_[0], dtype=np.float64)), float(fitted.intercept_[0])
        return Learned(centre, scale, weight, bias)

    def run(self, problem: InferenceProblem) -> Scores:
        """Answer the question about every client's classes, or refuse where nobody is there to learn it from."""
        asked, n_classes = self.ask(problem), problem.knowledge.n_classes
        if len(asked.certain) < len(problem.uploads):
            if asked.means == "gradients":
                return self._told(problem, asked, followed_shares(problem), BY_GRADIENTS)
            if asked.means == "biases":
                return self._raised(problem, asked)
            if asked.means == "deviation":
                held = counted_shares(problem)
                if held is not None:
                    return self._told(problem, asked, held, BY_DEVIATION)
                self._refuse_teachers(problem.knowledge, len(problem.uploads), bool(asked.certain), asked.question)
        learned, source = self._learned(problem, asked)
        classes_of, scores = {}, {}
        for client, seen in problem.uploads.items():
            if client in asked.compared:
                classes, values = asked.compared[client]
            else:
                classes, values = self.score(seen, asked.question, n_classes, learned[client], asked.told[client])
            classes_of[client] = classes
            scores[client] = (2 * values - 1) * CERTAIN if client in asked.certain else values
        others = self.colludes and len(asked.certain) < len(scores)
        outputs = bool(asked.compared) and are_outputs(problem.uploads)
        return Scores(
            replace(asked, classes=classes_of),
            scores,
            shares={client: values.softmax(0) for client, values in scores.items()} if outputs else {},
            source=source,
            colluders="all other clients" if others else "",
        )

    def _raised(self, problem: InferenceProblem, asked: Inquiry) -> Scores:
        """Answer by the changes of biases, which are no shares, or as clients say themselves."""
        rose = rises(problem)
        found = self._told(problem, asked, {client: one.softmax(0) for client, one in rose.items()}, BY_BIASES)
        return replace(found, shares={})

    def _told(self, problem: InferenceProblem, asked: Inquiry, held: Mapping[int, Tensor], source: str) -> Scores:
        """Answer by the shares of classes, or as clients say themselves."""
        classes_of, scores = {}, {}
        for client in problem.uploads:
            certain = self.read_off(asked.told[client], asked.question, problem.knowledge.n_classes)
            classes = asked.classes[client]
            classes_of[client], values = certain or (classes, odds(held[client][classes], asked.question))
            scores[client] = (2 * values - 1) * CERTAIN if certain else values
        some = f"{IN_CLEAR[1]} of {len(asked.certain)} clients, and " if asked.certain else ""
        return Scores(replace(asked, classes=classes_of), scores, shares=held, source=some + source)

    def score(
        self,
        observation: Observation,
        question: Property,
        n_classes: int,
        learned: Learned | None,
        told: Said | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return classes ``(k,)`` and a score for each ``(k,)``, float64; a higher score is a likelier yes.

        Scores that are read off, from what a client ``told`` in all rounds or else from this upload, are 0 and 1. Without
        these and without anything learned all are the same.
        """
        certain = self.read_off(said((observation.upload,)) if told is None else told, question, n_classes)
        if certain is not None:
            return certain
        classes, rows = self._describe(observation, n_classes)
        odds = torch.zeros(len(rows), dtype=torch.float64) if learned is None else learned(rows)
        # One class of a client has the majority, so its classes compete with one another.
        return classes, odds.log_softmax(0) if question == "majority" else odds

    def _describe(self, observation: Observation, n_classes: int) -> tuple[Tensor, Tensor]:
        return describe(observation, n_classes, hidden=self.encodings == "hidden")

    @property
    def colludes(self) -> bool:
        """True where it is told how many images of each class other clients have."""
        return self.known == "others"

    def ask(self, problem: InferenceProblem) -> Inquiry:
        """Settle what is asked and whether it can be answered, before anything is computed.

        Raises:
            UserError: where nothing is in clear and there is nobody to learn from.
        """
        uploads, knowledge, told = problem.uploads, problem.knowledge, problem.said()
        if self.encodings == "hidden" and all(MIXTURES.first(seen.upload) is not None for seen in uploads.values()):
            told = dict.fromkeys(told, Said(None, None))
        n_classes, question = knowledge.n_classes, self.asked(list(told.values()))

        def in_clear(asked: Property) -> frozenset[int]:
            return frozenset(k for k in told if self.read_off(told[k], asked, n_classes) is not None)

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
            told=told,
            certain=certain,
            learns=learns,
            means=means,
            compared=compared,
        )

    def _means(self, problem: InferenceProblem) -> Means:
        """Return by what answers are told that are neither in clear nor compared."""
        uploads, card = list(problem.uploads.values()), problem.knowledge.card
        means = [MEANS.first(seen.upload) for seen in uploads]
        if all(one is not None and self.takes_extractor(one.kind, card) for one in means) and countable(problem):
            return "deviation"
        if not self._reads_weights or not all(TRAINED.first(seen.upload) is not None for seen in uploads):
            return self._refuse_biases()
        if self.by == "auto" and followable(problem):
            return "gradients"
        return "biases" if has_biases(problem) else self._refuse_biases()

    def _refuse_biases(self) -> Means:
        """Return that answers are learned, where nobody asked for biases."""
        if self.by == "biases":
            raise UserError("property: by=biases needs uploads of a model or head that was broadcast too; drop it")
        return "learned"

    def _compared(self, problem: InferenceProblem) -> Mapping[int, tuple[Tensor, Tensor]]:
        """Return classes and scores from answers beside one another, by client; empty where the uploads hold none."""
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
            return answer_classes.compare(uploads)
        if knowledge.public_images is None or knowledge.public_labels is None:
            granted = argument("knowledge", {"attacker_data": "same_domain"})
            raise UserError(f"property: classes of the public images are not known; pass {granted}")
        return kernel_classes.compare(uploads, knowledge.public_images, knowledge.public_labels, knowledge.n_classes)

    def _refuse_teachers(self, knowledge: Knowledge, n_clients: int, some_certain: bool, question: Property) -> None:
        """Refuse where those who do not say the answer leave nobody to learn it from."""
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
        """Return the regression for each client's question, and where it was learned."""
        knowledge, uploads = problem.knowledge, problem.uploads
        n_classes = knowledge.n_classes
        nothing: dict[int, Learned | None] = dict.fromkeys(uploads)
        if asked.compared:
            return nothing, f"the other {'public outputs' if are_outputs(uploads) else 'kernels'} of the round"
        if len(asked.certain) == len(uploads):
            newest = (said((seen.upload,)) for seen in uploads.values())
            at_once = all(self.read_off(one, asked.question, n_classes) is not None for one in newest)
            return nothing, IN_CLEAR[0] if at_once else IN_CLEAR[1]
        some = f"{IN_CLEAR[1]} of {len(asked.certain)} clients, and " if asked.certain else ""
        if not asked.learns:
            return nothing, f"{some}nothing for the others"
        if self.colludes:
            all_known = {k: KnownClient(seen, problem.colluders[k]) for k, seen in uploads.items()}
            found: dict[int, Learned | None] = {
                k: self.learn([one for other, one in all_known.items() if other != k], asked.question, n_classes)
                for k in uploads
            }
            return found, f"{some}the {len(uploads) - 1} other clients, in league with the attacker"
        assert knowledge.public_images is not None
        assert knowledge.public_labels is not None
        made = shadow_clients(
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
        for client in made:
            known.append(client)
            if problem.progress is not None:
                problem.progress(len(known), self.shadow_clients)
        fitted = self.learn(known, asked.question, n_classes)
        return dict.fromkeys(uploads, fitted), f"{some}{len(known)} shadow clients"


def _own_images() -> str:
    """Return the arguments that give the attacker images to make clients of."""
    return f"{argument('knowledge', {'attacker_data': 'same_domain'})} and {argument('public')} N"
