"""Property inference: what an upload discloses of a client's classes, such as which class it has most of.

Counts and label sets in clear are read off. Otherwise, by what the threat model has:

- means: shares of classes by the numbers of images behind them (:mod:`fedpriv.attacks.inference.means`);
- trained weights: gradients and biases (:mod:`fedpriv.attacks.inference.update_scores`);
- public outputs: log p_k(c | x) - log p_j(c | x) of clients k and j is log pi_k(c) - log pi_j(c) up to a constant, pi being
  shares of classes (after Shi, Ouyang and Wang, arXiv 2502.08001);
- kernels: two public images of a class that a client holds are more alike in its kernel than in other clients';
- means without extractors: logistic regression on uploads of simulated clients
  (:mod:`fedpriv.attacks.inversion.surrogate`), by features that mean the same for every client (Ateniese et al. 2015;
  Melis et al., IEEE S&P 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import cosine_similarity, one_hot

from fedpriv.algebra.matrices import centred
from fedpriv.attacks.inference.base import Asked, Inference, InferenceProblem, Scores
from fedpriv.attacks.inference.means import AVERAGES, MEANS, enough_images, estimate_member_counts, read_mean_round
from fedpriv.attacks.inference.update_scores import bias_change, has_gradients, head_bias_delta, shares_by_gradients
from fedpriv.attacks.inputs.outputs import known_classes, log_outputs, public_outputs
from fedpriv.attacks.inputs.targets import Said, held_classes, said, upload_holds
from fedpriv.attacks.inversion.surrogate import ShadowTraining, shadow_clients
from fedpriv.attacks.observation import GIVEN, Knowledge, Needs, Observation, ThreatModel
from fedpriv.datasets.types import Samples
from fedpriv.uploads import kinds
from fedpriv.uploads.payloads import Classifier, Entangled, Kernel, Prototypes, PublicImages, find_payload, get_payload
from fedpriv.util.errors import UserError, shown

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

LEAST_CLIENTS, LEAST_IMAGES = 3, 40
"""Fewest clients whose uploads are compared, and fewest images of its own of which the attacker simulates clients."""

LOST, _ALIKE, _TINY = 0.5, 1e-2, 1e-12
"""Median s over clients above which mixtures are not separated (with little noise 0.01 to 0.14 on seven federations, with
much 1.5 and 7.0 on two); relative change of weights over rounds that counts as none; least length."""


@dataclass(frozen=True, kw_only=True)
class Inquiry(Asked):
    """A question, and how it can be answered."""

    certain: Mapping[int, Tensor]  # client -> its answer, where that is disclosed
    means: Means  # by which the others' answers are computed
    compared: Mapping[int, tuple[Tensor, Tensor]]  # client -> classes and scores of kernels or public outputs


@dataclass(frozen=True, kw_only=True)
class PropertyInference(Inference):
    """Answer a question about each class of a client.

    Attributes:
        question: ``majority`` (is it the client's most frequent class?) or ``holds`` (has the client any image of it?).
        shadow_clients: their number, where answers are learned.
        steps: the most steps of the training of one, of 16 images each; it ends where the running mean of its loss is below
            0.15 of the first.
        encodings: of mixtures: ``sent``, so that they disclose classes, or ``hidden``, so that classes are learned from the
            mixture alone (the adaptive attack on ``hide-labels``).
    """

    question: Property = "majority"
    shadow_clients: Annotated[int, Ge(2)] = 32
    steps: Annotated[int, Ge(1)] = 200
    encodings: Literal["sent", "hidden"] = "sent"

    name = "property"
    version = 9
    summary = "scores of classes: which one the client has most of"
    asks = "classes"
    reads_every_round = True
    most_rounds = 15
    targets = kinds.VECTORS | kinds.CLASS_OUTPUTS | kinds.TRAINED | kinds.ANSWERS
    requirements_by_kind = ((kinds.KERNELS, Needs(attacker_data=("same_domain",))),)
    needs_in_words = (
        "nothing for what is sent in clear and for models and heads, of which it tells more with attacker_data=same_domain; "
        "else that"
    )

    def takes_extractor(self, kind: str, granted: ThreatModel) -> bool:
        """True where shares of classes are computed from deviations, or from gradients through what a client kept."""
        if granted.attacker_data != "same_domain" or not self._computes_shares(kind):
            return False
        by_query = granted.extractor == "query" and kind in AVERAGES | kinds.HEADS
        return kind not in kinds.WHOLE and (granted.extractor == "white_box" or by_query)

    def uses_rounds_on(self, kind: str) -> bool:
        """True of mixtures, which changing weights separate, and of trained weights."""
        return kind in kinds.MIXTURES | kinds.TRAINED and self._computes_shares(kind)

    def _computes_shares(self, kind: str) -> bool:
        return kind in MEANS | kinds.TRAINED and not (kind in kinds.MIXTURES and self.encodings == "hidden")

    def rounds_on(self, kind: str, card: ThreatModel) -> int:
        one_by_one = kind in kinds.TRAINED or self.takes_extractor(kind, card)
        return self.most_rounds if self.uses_rounds_on(kind) and one_by_one else 1

    def answers(self, counts: Tensor, question: str) -> Tensor:
        return counts > 0 if question == "holds" else counts == counts.max()

    def read_off(self, disclosed: Said, n_classes: int) -> Tensor | None:
        """Return a score ``(C,)`` of 0 or 1 for each class where a client disclosed the answer; else None."""
        if disclosed.counts is not None:
            counts = torch.tensor([disclosed.counts.get(label, 0) for label in range(n_classes)])
            return self.answers(counts, self.question).double()
        if self.question == "holds" and disclosed.classes is not None:
            return torch.isin(torch.arange(n_classes), torch.tensor(disclosed.classes, dtype=torch.int64)).double()
        return None

    def run(self, problem: InferenceProblem) -> Scores:
        inquiry = self.ask(problem)
        computed, source = self._compute(problem, inquiry)
        scores = {}
        for client, classes in inquiry.classes.items():
            if client in inquiry.certain and not inquiry.compared:
                scores[client] = (2 * inquiry.certain[client] - 1) * CERTAIN
            else:
                scores[client] = computed.get(client, torch.zeros(len(classes), dtype=torch.float64))
        return Scores(inquiry, scores, source)

    def _compute(self, problem: InferenceProblem, inquiry: Inquiry) -> tuple[dict[int, Tensor], str]:
        """Return the scores that are computed, by client, and their source."""
        uploads, knowledge, hidden = problem.uploads, problem.knowledge, self.encodings == "hidden"
        if inquiry.compared:
            what = "public outputs" if _all_hold(uploads.values(), kinds.PUBLIC_OUTPUTS) else "kernels"
            return {
                client: values for client, (_, values) in inquiry.compared.items()
            }, f"the other {what} of the round"
        if len(inquiry.certain) == len(uploads):
            newest = (self.read_off(said((seen.upload,)), knowledge.n_classes) for seen in uploads.values())
            return {}, IN_CLEAR[1] if any(answer is None for answer in newest) else IN_CLEAR[0]
        some = f"{IN_CLEAR[1]} of {len(inquiry.certain)} clients, and " if inquiry.certain else ""
        shares, source = None, BY_DEVIATION
        if inquiry.means == "gradients":
            shares, source = shares_by_gradients(problem), BY_GRADIENTS
        elif inquiry.means == "biases":
            shares, source = {k: delta.softmax(0) for k, delta in head_bias_delta(problem).items()}, BY_BIASES
        elif inquiry.means == "deviation":
            shares = shares_by_counts(problem)
        if shares is not None:
            return {k: shares[k][classes].log() for k, classes in inquiry.classes.items()}, some + source
        others = {client: seen for client, seen in uploads.items() if client not in inquiry.certain}
        like = next(iter(others.values()))
        self._refuse_unlearnable(problem, like, bool(inquiry.certain))
        if knowledge.public_images is None or knowledge.public_labels is None:
            return {}, f"{some}nothing for the others"
        simulated = shadow_clients(
            like,
            Samples(knowledge.public_images, knowledge.public_labels),
            knowledge.n_classes,
            self.shadow_clients,
            problem.seed,
            training=ShadowTraining(epochs=30, batch_size=16, learning_rate=2e-3, steps=self.steps, enough=0.15),
        )
        described, wanted = [], []
        for seen, counts in simulated:
            classes, rows = describe(seen, knowledge.n_classes, hidden=hidden)
            described.append(rows)
            wanted.append(self.answers(counts, self.question)[classes])
            if problem.progress is not None:
                problem.progress(len(described), self.shadow_clients)
        learned = learn(torch.cat(described), torch.cat(wanted))
        scores = {k: learned(describe(seen, knowledge.n_classes, hidden=hidden)[1]) for k, seen in others.items()}
        if self.question == "majority":  # one class of a client has it, so its classes compete with one another
            scores = {client: values.log_softmax(0) for client, values in scores.items()}
        return scores, f"{some}{len(described)} shadow clients"

    def ask(self, problem: InferenceProblem) -> Inquiry:
        uploads, knowledge, disclosed = problem.uploads, problem.knowledge, problem.said()
        if self.encodings == "hidden" and _all_hold(uploads.values(), kinds.MIXTURES):
            disclosed = dict.fromkeys(disclosed, Said(None, None))
        n_classes, means, compared = knowledge.n_classes, self._means(problem), _compared_answers(problem)
        answers = ((client, self.read_off(each, n_classes)) for client, each in disclosed.items())
        certain = {client: answer for client, answer in answers if answer is not None}
        classes = {}
        for client, seen in uploads.items():
            if client not in certain and not compared and means == "learned":
                self._refuse_unlearnable(problem, seen, bool(certain))
            if client in compared:
                classes[client] = compared[client][0]
            elif client in certain or means in ("gradients", "biases"):
                classes[client] = torch.arange(n_classes)
            else:
                classes[client] = named_classes(seen, n_classes, hidden=self.encodings == "hidden")
        return Inquiry(classes, self.question, certain=certain, means=means, compared=compared)

    def _means(self, problem: InferenceProblem) -> Means:
        """Return the means of answers that are neither disclosed nor compared."""
        uploads, knowledge = list(problem.uploads.values()), problem.knowledge
        means = [MEANS.first(seen.upload) for seen in uploads]
        granted = all(mean is not None and self.takes_extractor(mean.kind, knowledge.card) for mean in means)
        if granted and can_count_members(problem):
            return "deviation"
        if _all_hold(uploads, kinds.TRAINED):
            labelled = knowledge.public_images is not None and knowledge.public_labels is not None
            if labelled and all(has_gradients(seen, knowledge) for seen in uploads):
                return "gradients"
            if all(bias_change(seen, knowledge) is not None for seen in uploads):
                return "biases"
        return "learned"

    def _refuse_unlearnable(self, problem: InferenceProblem, seen: Observation, some_certain: bool) -> None:
        """Refuse an upload whose answer is not disclosed where it cannot be learned."""
        public, question = problem.knowledge.public_labels, QUESTIONS[self.question]
        if public is None and not some_certain:
            raise UserError(
                f"property: no stored upload says in clear what is asked ({question}), and the attacker has "
                f"nothing to learn it from; pass knowledge={shown({'attacker_data': 'same_domain'})} and public N, "
                f"of your own uploads {GIVEN['attacker_data']}"
            )
        if public is not None and len(public) < LEAST_IMAGES:
            raise UserError(
                f"property: {len(public)} images to make clients of; expected at least {LEAST_IMAGES}; train with public N"
            )
        if public is not None and AVERAGES.first(seen.upload) is None:
            learned = f"{question} is learned from prototypes and entangled vectors"
            raise UserError(f"property: {upload_holds(seen)}; {learned}")


@dataclass(frozen=True, kw_only=True)
class LabelDisclosure(PropertyInference):
    """Answer which classes a client holds: read off where uploads name them, else inferred as a property is."""

    question: Property = "holds"

    name = "labels"
    version = 1
    summary = "scores of classes: which ones the client holds"


def named_classes(seen: Observation, n_classes: int, *, hidden: bool) -> Tensor:
    """Return the classes that an upload names, ascending, or all; with ``hidden`` a mixture names none."""
    named = None if hidden and kinds.MIXTURES.first(seen.upload) is not None else held_classes(seen.upload)
    return torch.arange(n_classes) if named is None else torch.tensor(named, dtype=torch.int64)


# ---------------------------------------------------------------- kernels and public outputs


def _all_hold(uploads: Iterable[Observation], group: kinds.Kinds) -> bool:
    """True where every upload holds one of a group of kinds."""
    return all(group.first(seen.upload) is not None for seen in uploads)


def _compared_answers(problem: InferenceProblem) -> Mapping[int, tuple[Tensor, Tensor]]:
    """Return classes and scores of kernels or public outputs, by client; empty for other uploads."""
    uploads, knowledge = problem.uploads, problem.knowledge
    if not _all_hold(uploads.values(), kinds.ANSWERS):
        return {}
    outputs = _all_hold(uploads.values(), kinds.PUBLIC_OUTPUTS)
    if len(uploads) < LEAST_CLIENTS:
        what = "public outputs" if outputs else "kernels"
        raise UserError(
            f"property: {len(uploads)} client(s), so too few {what} to compare; expected at least {LEAST_CLIENTS}"
        )
    if outputs:
        shares = public_logit_shares(uploads)
        return {client: (torch.arange(len(scores)), scores) for client, scores in shares.items()}
    if knowledge.public_images is None or knowledge.public_labels is None:
        granted = f"knowledge={shown({'attacker_data': 'same_domain'})}"
        raise UserError(f"property: classes of the public images are not known; pass {granted}")
    return kernel_class_scores(uploads, knowledge.public_images, knowledge.public_labels, knowledge.n_classes)


def public_logit_shares(uploads: Mapping[int, Observation]) -> dict[int, Tensor]:
    """Return by how much each client's mean log output of a class is above the others' ``(C,)``, float64, of mean zero."""
    means = torch.stack([log_outputs(public_outputs(seen)).mean(0) for seen in uploads.values()])
    above = means - (means.sum(0) - means) / (len(means) - 1)
    return dict(zip(uploads, above - above.mean(1, keepdim=True), strict=True))


def class_similarity(matrix: Tensor, labels: Tensor, n_classes: int) -> Tensor:
    """Return the mean similarity of two images of each class ``(C,)``, float64; NaN for a class of fewer than two.

    Of the kernel ``(L, L)`` of images of classes ``(L,)``, centred, over the mean of its diagonal.
    """
    similar = centred(matrix.double().cpu())
    similar = similar / similar.diagonal().mean().clamp_min(1e-9)
    similar = similar.clone().fill_diagonal_(0)
    of_class = one_hot(labels.cpu(), n_classes).double()
    number = of_class.sum(0)
    return (of_class.T @ similar @ of_class).diagonal() / torch.where(number > 1, number * (number - 1), torch.nan)


def kernel_class_scores(
    uploads: Mapping[int, Observation], images: Tensor, labels: Tensor, n_classes: int
) -> dict[int, tuple[Tensor, Tensor]]:
    """Return for each client the classes that can be asked about ``(k,)`` and their scores ``(k,)``, float64.

    A score says by how many standard deviations of the other clients' the images of a class are more alike, less the mean
    over classes. ``images``, of ``labels``, are the attacker's own, broadcast ones among them.
    """
    rows = []
    for seen in uploads.values():
        matrix = get_payload(seen.upload, Kernel).matrix
        classes = known_classes(get_payload(seen.broadcast, PublicImages).images[-len(matrix) :], images, labels)
        if bool((classes < 0).any()):
            raise UserError(
                "property: an image that was broadcast is none of the attacker's own, so its class is not known"
            )
        rows.append(class_similarity(matrix, classes, n_classes))
    table = torch.stack(rows)
    classes = table.isfinite().all(0).nonzero().squeeze(1)
    if not len(classes):
        raise UserError("property: no class has two of the public images of the round; train with a larger rad_size")
    table = table[:, classes]
    scores = {}
    for index, client in enumerate(uploads):
        others = table[torch.arange(len(table)) != index]
        above = (table[index] - others.mean(0)) / others.std(0, unbiased=False).clamp_min(1e-9)
        scores[client] = classes, above - above.mean()
    return scores


# ---------------------------------------------------------------- deviations of means


def can_count_members(problem: InferenceProblem) -> bool:
    """True if the attacker has own images, extractors, and enough rounds for the uploads of all clients."""
    knowledge, labels = problem.knowledge, problem.knowledge.public_labels
    if labels is None or knowledge.public_images is None or not enough_images(labels):
        return False
    for client, seen in problem.uploads.items():
        if client not in knowledge.extractors:
            return False
        if kinds.CLASS_OUTPUTS.first(seen.upload) is not None and client not in knowledge.heads:
            return False
        if kinds.MIXTURES.first(seen.upload) is not None and not _separable(_rounds_of_means(problem, client)):
            return False
    return True


def _separable(seen: Sequence[tuple[Observation, Knowledge]]) -> bool:
    """True if the weights of mixtures change over rounds, as those that are shares of classes (VAR) do not."""
    weights = [sent.said("weights") for item, _ in seen if (sent := kinds.MIXTURES.first(item.upload)) is not None]
    table = torch.stack([weight.double().flatten().cpu() for weight in weights if weight is not None])
    n_classes = int((table != 0).any(0).sum())
    return len(table) > 1 and int(torch.linalg.matrix_rank(table, rtol=_ALIKE)) >= min(2, n_classes)


def shares_by_counts(problem: InferenceProblem) -> dict[int, Tensor] | None:
    """Return the shares of classes ``(C,)`` in each client's images, float64; for a problem that :func:`can_count_members`.

    None where mixtures of half of the clients differ too much from round to round (:data:`LOST`).
    """
    images, labels = problem.knowledge.public_images, problem.knowledge.public_labels
    assert images is not None
    assert labels is not None
    shares, drifts = {}, []
    for client in problem.uploads:
        each = _rounds_of_means(problem, client)
        rounds = [read_mean_round(*item, images[:0], images, labels, problem.trained) for item in each]
        counts = estimate_member_counts(rounds)
        table = torch.zeros(problem.knowledge.n_classes, dtype=torch.float64)
        table[list(counts.numbers)] = torch.tensor(list(counts.numbers.values()), dtype=torch.float64)
        shares[client] = table / table.sum()
        drifts.append(counts.drift)
    return None if median(drifts) > LOST else shares


def _rounds_of_means(problem: InferenceProblem, client: int) -> list[tuple[Observation, Knowledge]]:
    """Return a client's uploads of means with their grants: of mixtures all, else the newest."""
    mixed = kinds.MIXTURES.first(problem.uploads[client].upload) is not None
    seen = problem.uploads_of(client)[0 if mixed else -1 :]
    return [pair for pair in seen if MEANS.first(pair[0].upload) is not None and client in pair[1].extractors]


# ---------------------------------------------------------------- learned from simulated clients

Learned = Callable[[Tensor], Tensor]
"""Features ``(k, f)`` of classes -> log-odds ``(k,)``."""


def describe(observation: Observation, n_classes: int, *, hidden: bool = False) -> tuple[Tensor, Tensor]:
    """Return classes ``(k,)``, by :func:`named_classes`, and features of each ``(k, f)``, float64, as for all clients."""
    head = find_payload(observation.broadcast, Classifier)
    classes = named_classes(observation, n_classes, hidden=hidden)
    mixed, means = find_payload(observation.upload, Entangled), find_payload(observation.upload, Prototypes)
    if means is not None:
        rows = means.features.cpu()[means.classes.cpu().argsort()]
        lengths = rows.norm(dim=1)
        usual = lengths.mean().clamp_min(_TINY)
        nearest = (torch.cdist(rows, rows) + torch.diag(torch.full((len(rows),), torch.inf))).amin(1)
        nearest = nearest.where(nearest.isfinite(), lengths) / usual
        results = [lengths.clamp_min(_TINY).log(), nearest, (rows - rows.mean(0)).norm(dim=1) / usual]
    elif mixed is not None:
        rows = mixed.feature.cpu().expand(len(classes), -1)
        results = [] if hidden else [mixed.label_encoding.cpu()[classes]]
    else:
        raise UserError(f"{upload_holds(observation)}; attack 'property' learns from prototypes and entangled vectors")
    if head is not None:  # the broadcast classifier's view of vectors as images of their classes
        weight, bias = head.state["weight"].cpu(), head.state["bias"].cpu()
        logits = rows @ weight.T + bias
        of_class = [values.gather(1, classes[:, None])[:, 0] for values in (logits, logits.log_softmax(1))]
        results += [of_class[0] - logits.mean(1), of_class[1], cosine_similarity(rows, weight[classes])]
    current = torch.stack(results, 1).double() if results else torch.zeros(len(classes), 0, dtype=torch.float64)
    spread = current.std(0, unbiased=False)
    beside = ((current - current.mean(0)) / spread.clamp_min(1e-9)).where(spread > 1e-9, 0.0)
    crowd = torch.full((len(classes), 1), 1 / max(1, len(classes)), dtype=torch.float64)
    return classes, torch.cat([current, beside, crowd], 1)


def learn(features: Tensor, wanted: Tensor) -> Learned:
    """Return the logistic regression of answers ``(k,)`` bool on features ``(k, f)``; constant where all are alike."""
    if bool(wanted.all()) or not bool(wanted.any()):
        return lambda rows: torch.zeros(len(rows), dtype=torch.float64)
    from sklearn.linear_model import LogisticRegression  # slow to import, and reports read this module
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fitted = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced", max_iter=2000))
    fitted.fit(features.numpy(), wanted.numpy())
    return lambda rows: torch.from_numpy(fitted.decision_function(rows.numpy()))
