"""Inversion of outputs: class inversion of mean outputs, and paired-logits inversion of outputs on public samples.

**Class inversion.** The mean output of a class is C numbers over all images of the class, so no single image can come out
of it; what the model takes the class to look like can. An image x is sought whose answer f(g(x)) by the client's own model
is the uploaded mean output u_c, by KL(u_c || softmax f(g(x))) where outputs are softmax vectors and by relative squared
distance where they are logits, under a deep image prior. ``match="class"`` is the same without the numbers: u_c is replaced
by certainty of the class, which the class ids alone allow. It is Fredrikson, Jha and Ristenpart's attack ("Model inversion
attacks that exploit confidence information", CCS 2015) under a prior, and shows what the uploaded numbers add.

**Paired logits.** The server has, of every public sample x, the client's output and the other clients'. It trains an
inversion network G to give x back from the pair of softmax vectors at temperature tau,

    min |G(softmax(z_others / tau), softmax(z_client / tau)) - x|^2   over the public samples,

and then asks G for a class j that the client was trained on: for what the client is certain of and the others are not,

    client: 1 at j;      others: e^(1 / alpha) / (C - 1 + e^(1 / alpha)) at j, 1 / (C - 1 + e^(1 / alpha)) elsewhere.

Source: Takahashi, Liu and Liu, "Breaching FedMD: image recovery via paired-logits inversion attack" (CVPR 2023). There the
others' output is that of a model of the server's; here it is the mean of the other clients' softmax vectors, and masked
pictures of the private classes are not translated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import linear, one_hot

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.extractors import OwnExtractors, require_extractors
from fedpriv.attacks.inputs.outputs import (
    extrapolate,
    log_outputs,
    of_others,
    output_distance,
    public_outputs,
    public_samples,
    uploaded_output,
)
from fedpriv.attacks.inversion.decoder import divided
from fedpriv.attacks.inversion.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.inversion.vector import DipFitting, FittedInversion
from fedpriv.attacks.observation import Cost, Knowledge, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.priors.pixels import LEAST_IMAGES
from fedpriv.attacks.search.candidates import TargetDistance
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import Last, derive_seed
from fedpriv.wire.kinds import CLASS_OUTPUTS, PUBLIC_OUTPUTS


@dataclass(frozen=True, kw_only=True)
class ClassInversion(DipFitting, FittedInversion):
    """Find an image for each uploaded class output.

    Attributes:
        match: ``outputs`` matches the uploaded numbers, ``class`` only the class they are said to be of.
    """

    iterations: Annotated[int, Ge(1)] = 300
    tolerance: Annotated[float, Ge(0)] = 1e-3
    patience: Annotated[int, Ge(1)] = 150
    match: Literal["outputs", "class"] = "outputs"

    name = "class-inversion"
    version = 3
    summary = "an image that the client's model answers as the upload says that it answers a class"
    targets = CLASS_OUTPUTS

    def distance(self, problem: AttackProblem) -> TargetDistance:
        """Return the distance of the model's answers to the uploaded outputs."""
        knowledge, device, targets = problem.knowledge, problem.device, problem.targets
        require_extractors(knowledge, targets)
        for client in sorted(set(problem.clients) - set(knowledge.heads)):
            raise UserError(f"no head of client {client} was handed over; attack {self.name!r} needs the whole model")
        outputs = [self._output(problem.observations, target, knowledge.n_classes) for target in targets]
        values = torch.stack([output for output, _ in outputs]).to(device)
        softmax = torch.tensor([of_softmax for _, of_softmax in outputs], device=device)
        clients, answers = torch.tensor([target.client for target in targets]), Answers(knowledge, device)

        @Last
        def goals(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            there = places.to(device)
            return clients[places], values[there], softmax[there]

        def distance(images: Tensor, places: Tensor) -> Tensor:
            owners, goal, of_softmax = goals(places)
            logits = answers(images[:, 0], owners)
            as_softmax = output_distance(logits, goal, softmax=True)
            return torch.where(of_softmax, as_softmax, output_distance(logits, goal, softmax=False))

        return distance

    def _output(self, observations: Sequence[Observation], target: TargetId, n_classes: int) -> tuple[Tensor, bool]:
        if self.match == "outputs":
            return uploaded_output(observations, target)
        if not 0 <= target.label < n_classes:
            raise UserError(f"attack {self.name!r} with match=class: no class is named for target {target.index}")
        return one_hot(torch.tensor(target.label), n_classes).float(), True


class Answers:
    """The models of clients as one map of images of several."""

    def __init__(self, knowledge: Knowledge, device: torch.device) -> None:
        self._classes, self._extracted = knowledge.n_classes, OwnExtractors(knowledge)
        heads = knowledge.heads.items()
        self._heads = {client: (weight.to(device), bias.to(device)) for client, (weight, bias) in heads}
        self._rows: Last[Tensor, dict[int, Tensor]] = Last(
            lambda owners: {k: (owners == k).nonzero().flatten().to(device) for k in sorted(set(owners.tolist()))}
        )

    def __call__(self, images: Tensor, owners: Tensor) -> Tensor:
        """Return the logits ``(n, C)`` of images, each by the model of its own client, which ``owners`` ``(n,)`` name."""
        features = self._extracted(images, owners)
        logits = features.new_zeros(len(features), self._classes)
        for client, rows in self._rows(owners).items():
            logits = logits.index_copy(0, rows, linear(features[rows], *self._heads[client]))
        return logits


@dataclass(frozen=True, kw_only=True)
class PairedLogits(Attack):
    """Train an inversion network for each client on public samples, and ask it for the client's classes.

    It is a decoder (:mod:`fedpriv.attacks.inversion.decoder_network`).

    Attributes:
        temperature: tau of both softmax vectors.
        alpha: how uncertain of the class the others are to be: near zero as certain as the client, then less and less.
        paired: whether the others' outputs stand beside the client's; without them G has the client's alone.
        iterations: most training steps of the network.
        learning_rate: Adam's step size.
        batch_size: pairs a step.
        width: outputs of its input layer.
    """

    temperature: Annotated[float, Gt(0)] = 1.0
    alpha: Annotated[float, Gt(0)] = 5.0
    paired: bool = True
    iterations: Annotated[int, Ge(1)] = 400
    learning_rate: Annotated[float, Gt(0)] = 2e-3
    batch_size: Annotated[int, Ge(2)] = 32
    width: Annotated[int, Ge(16)] = 256

    name = "paired-logits"
    version = 2
    summary = "an image of each class of a client, by a network that inverts its outputs beside the others'"
    targets = PUBLIC_OUTPUTS
    unit = "class"
    budget = "iterations"
    needs = Needs(labels=("given",), attacker_data=("same_domain",))

    def run(self, problem: AttackProblem) -> Reconstruction:
        """Train a network for each client and ask it for the targets' classes, or refuse where something is missing."""
        n_classes, targets = problem.knowledge.n_classes, problem.targets
        for target in targets:
            if not 0 <= target.label < n_classes:
                raise UserError(
                    f"attack {self.name!r}: no class is named for target {target.index} of client {target.client}"
                )
        decoders = {client: self._trained(problem, client, turn) for turn, client in enumerate(problem.clients)}
        of_targets = [decoders[target.client] for target in targets]
        queries = [self.query(target.label, n_classes).to(problem.device) for target in targets]
        return Reconstruction(
            targets=targets,
            images=torch.stack([decoder(query[None], 0) for decoder, query in zip(of_targets, queries, strict=True)]),
            objective=torch.tensor([[decoder.held_out_error] for decoder in of_targets]),
            chosen=torch.zeros(len(targets), dtype=torch.int64),
            labels=torch.tensor([[target.label] for target in targets]),
            cost=Cost(iterations=max(decoder.steps for decoder in of_targets), rows=len(targets)),
            converged=torch.tensor([decoder.settled for decoder in of_targets]),
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the measure of how unsure a client is of the class beside the others, as public outputs extrapolate.

        That is the others' log output at the class less the client's, of networks extracted as for membership
        (:func:`fedpriv.attacks.inputs.outputs.extrapolate`), in nats, of the targets' round; lower for an image of
        which the client is surer. Without ``paired`` the client's alone.
        """
        uploads = {seen.client: seen for seen in problem.observations if seen.round == problem.targets[0].round}
        sent = {client: public_outputs(seen) for client, seen in uploads.items()}
        logs = {client: log_outputs(outputs) for client, outputs in sent.items()}
        surer = {k: logs[k] - of_others(logs, k) if self.paired else logs[k] for k in problem.clients}
        known = {k: public_samples(self.name, sent[k], problem.knowledge) for k in problem.clients}

        def unsure(images: Tensor) -> Tensor:
            rows = [
                -extrapolate(known[target.client], surer[target.client][:, target.label, None], shown).mean()
                for target, shown in zip(problem.targets, images, strict=True)
            ]
            return torch.stack(rows)

        return unsure

    def caveat(self, problem: AttackProblem) -> str:
        """Return why the true images are not what is searched for."""
        return "the network answers with what public images have in common; no private image is behind any output"

    def query(self, label: int, n_classes: int) -> Tensor:
        """Return the outputs ``(C,)`` or ``(2 C,)``, others before the client's, that stand for a private class."""
        client = one_hot(torch.tensor(label), n_classes).float()
        if not self.paired:
            return client
        # e^(1 / alpha) / (C - 1 + e^(1 / alpha)), which must not overflow for small alpha.
        at_class = 1 / (1 + (n_classes - 1) * math.exp(-1 / self.alpha))
        others = torch.full((n_classes,), (1 - at_class) / max(1, n_classes - 1))
        others[label] = at_class
        return torch.cat([others, client])

    def inputs(self, uploads: Mapping[int, Observation], client: int) -> Tensor:
        """Return the softmax vectors of a round on each sample ``(n, C)`` or ``(n, 2 C)``, float32, which are inverted."""
        shares = {k: (log_outputs(public_outputs(seen)) / self.temperature).softmax(1) for k, seen in uploads.items()}
        both = [of_others(shares, client), shares[client]] if self.paired else [shares[client]]
        return torch.cat(both, 1).float()

    def _trained(self, problem: AttackProblem, client: int, turn: int) -> Decoder:
        """Return the network of a client, trained on all rounds that were seen of it."""
        features, images = [], []
        for round_ in sorted({seen.round for seen in problem.observations}):
            uploads = {seen.client: seen for seen in problem.observations if seen.round == round_}
            if client in uploads and (len(uploads) > 1 or not self.paired):
                features.append(self.inputs(uploads, client))
                images.append(public_samples(self.name, public_outputs(uploads[client]), problem.knowledge))
        if not features:
            raise UserError(
                f"attack {self.name!r} pairs clients, but client {client} was alone in its rounds; pass paired=false"
            )
        known, public = torch.cat(features).to(problem.device), torch.cat(images).to(problem.device)
        if len(known) < LEAST_IMAGES:
            raise UserError(
                f"attack {self.name!r} saw outputs on {len(known)} public samples; expected at least {LEAST_IMAGES}"
            )
        seed = derive_seed(problem.seed, "paired logits", client)
        inside, outside = divided(Pairs([known], public), seed)
        training = DecoderTraining(self.iterations, self.learning_rate, self.batch_size, self.width)

        def tick(done: int) -> None:
            if problem.progress is not None:
                problem.progress(turn * self.iterations + done, len(problem.clients) * self.iterations)

        return train_decoder(inside, outside, training, seed, tick)
