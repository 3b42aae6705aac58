"""Class inversion: an image that the client's own model answers as the upload says its images of a class are answered.

The mean output of a class is C numbers over all images of the class, so no single image can come out of it. What can is
what the model takes the class to look like. An image x is sought whose answer f(g(x)) is the uploaded mean output u_c,
by KL(u_c || softmax f(g(x))) where outputs are softmax vectors and by relative squared distance where they are logits,
under a deep image prior or over pixels with total variation.

``match="class"`` is the same without the numbers: u_c is replaced by certainty of the class, which the class ids alone
allow. It is Fredrikson, Jha and Ristenpart's attack ("Model inversion attacks that exploit confidence information",
CCS 2015) under a prior, and shows what the uploaded numbers add.


Paired-logits inversion: an image of each class of a client, by inverting its outputs beside everybody else's.

The server has, of every public sample x, the client's output and the other clients'. It trains an inversion network G to
give x back from the pair of softmax vectors at temperature tau,

    min |G(softmax(z_others / tau), softmax(z_client / tau)) - x|^2   over the public samples,

and then asks G for a class j that the client was trained on: for what the client is certain of and the others are not,

    client: 1 at j;      others: e^(1 / alpha) / (C - 1 + e^(1 / alpha)) at j, 1 / (C - 1 + e^(1 / alpha)) elsewhere.

The gap between the two is what training on private images of class j makes of them. G never saw such an image: it answers
with what public images have in common of which the client is surer than the others. How much of that is the client's own
shows against the floor, the mean image that strangers have of the class, and against the same attack on another client's
outputs. The network is one for each client, a ridge readout and two layers on what it leaves over
(:mod:`fedpriv.attacks.inversion.decoder_network`).

Source: Takahashi, Liu and Liu, "Breaching FedMD: image recovery via paired-logits inversion attack" (CVPR 2023). There the
others' output is that of a model of the server's; here it is the mean of the other clients' softmax vectors, which needs no
model. There classes are persons, of whom the public set holds masked or blurred pictures, and a translation of these pulls G
towards the person: no such translation here, where the public images are of the private classes' own domain. The default of
alpha is that of the authors' code.

"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from fedpriv.attacks.inversion.decoder import LEAST_IMAGES, divided
from fedpriv.attacks.inversion.decoder_network import Decoder, DecoderTraining, Pairs, train_decoder
from fedpriv.attacks.inversion.vector import DipFitting, FittedInversion, ImageShape
from fedpriv.attacks.observation import Cost, Knowledge, Needs, Observation, Reconstruction, TargetId
from fedpriv.attacks.priors.pixels import PixelPrior, PixelSettings
from fedpriv.attacks.search.fit import Distance, Prior, Schedule
from fedpriv.util.errors import UserError
from fedpriv.util.last import Last
from fedpriv.util.seeds import derive_seed
from fedpriv.wire.kinds import CLASS_OUTPUTS, PUBLIC_OUTPUTS


@dataclass(frozen=True, kw_only=True)
class ClassInversion(DipFitting, FittedInversion):
    """Find an image for each uploaded class output.

    Attributes:
        match: ``outputs`` matches the uploaded numbers, ``class`` only the class they are said to be of.
        prior: ``dip`` is an untrained network (see :mod:`fedpriv.attacks.priors.dip`), ``pixels`` total variation, with ten
            times the step size, falling to zero, and no running mean.
        pixels: what holds pixels back (``pixels``).
    """

    iterations: Annotated[int, Ge(1)] = 300
    tolerance: Annotated[float, Ge(0)] = 1e-3
    patience: Annotated[int, Ge(1)] = 150
    match: Literal["outputs", "class"] = "outputs"
    prior: Literal["dip", "pixels"] = "dip"
    pixels: PixelSettings = PixelSettings(jitter=1)

    name = "class-inversion"
    version = 3
    summary = "an image that the client's model answers as the upload says that it answers a class"
    targets = CLASS_OUTPUTS

    @property
    def schedule(self) -> Schedule:
        """Adam as the prior wants it."""
        planned = super().schedule
        if self.prior == "dip":
            return planned
        # A pixel moves by a step size directly; a network's weights move it by far more.
        return replace(planned, learning_rate=10 * self.learning_rate, anneal=True, average=0.0)

    def prior_of(self, generators: Sequence[torch.Generator], image_shape: ImageShape, device: torch.device) -> Prior:
        """Return the prior that is asked for."""
        if self.prior == "dip":
            return super().prior_of(generators, image_shape, device)
        return PixelPrior(generators, image_shape, self.pixels, device)

    def distance(self, problem: AttackProblem) -> Distance:
        """Return the distance of the model's answers to the uploaded outputs."""
        knowledge, device, targets = problem.knowledge, problem.device, problem.targets
        require_extractors(knowledge, targets)
        for client in sorted(set(problem.clients) - set(knowledge.heads)):
            raise UserError(f"no head of client {client} was handed over; attack {self.name!r} needs the whole model")
        outputs = [self._wanted(problem.observations, target, knowledge.n_classes) for target in targets]
        wanted = torch.stack([one for one, _ in outputs]).to(device)
        softmax = torch.tensor([one for _, one in outputs], device=device)
        owners, answered = torch.tensor([target.client for target in targets]), Answers(knowledge, device)

        @Last
        def asked(places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            there = places.to(device)
            return owners[places], wanted[there], softmax[there]

        def distance(images: Tensor, places: Tensor) -> Tensor:
            whose, aims, alike = asked(places)
            logits = answered(images, whose)
            as_softmax = output_distance(logits, aims, softmax=True)
            return torch.where(alike, as_softmax, output_distance(logits, aims, softmax=False))

        return distance

    def _wanted(self, observations: Sequence[Observation], target: TargetId, n_classes: int) -> tuple[Tensor, bool]:
        if self.match == "outputs":
            return uploaded_output(observations, target)
        if not 0 <= target.label < n_classes:
            raise UserError(f"attack {self.name!r} with match=class: no class is named for target {target.index}")
        return one_hot(torch.tensor(target.label), n_classes).float(), True


class Answers:
    """The models of clients as one map of images of several.

    Args:
        knowledge: extractors and heads.
        device: of the images.
    """

    def __init__(self, knowledge: Knowledge, device: torch.device) -> None:
        self._classes, self._extracted = knowledge.n_classes, OwnExtractors(knowledge)
        heads = knowledge.heads.items()
        self._heads = {client: (weight.to(device), bias.to(device)) for client, (weight, bias) in heads}
        self._places: Last[Tensor, list[tuple[int, Tensor]]] = Last(
            lambda owners: [(k, (owners == k).nonzero().flatten().to(device)) for k in _each(owners)]
        )

    def __call__(self, images: Tensor, owners: Tensor) -> Tensor:
        """Return the logits ``(n, C)`` of images, each by the model of its own client, which ``owners`` ``(n,)`` name."""
        features = self._extracted(images, owners)
        logits = features.new_zeros(len(features), self._classes)
        for client, mine in self._places(owners):
            logits = logits.index_copy(0, mine, linear(features[mine], *self._heads[client]))
        return logits


def _each(owners: Tensor) -> list[int]:
    return sorted(set(owners.tolist()))


@dataclass(frozen=True, kw_only=True)
class PairedLogits(Attack):
    """Train an inversion network for each client on public samples, and ask it for the client's classes.

    Attributes:
        temperature: tau of both softmax vectors; 3 in the authors' code, whose network ends in a function that saturates. At
            1 a query is nearer to what was seen.
        alpha: how uncertain of the class the others are asked to be: near zero as certain as the client, then less and less.
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
        """Train a network for each client and ask it for the targets' classes.

        Raises:
            UserError: when the attacker does not hold the public samples, too few outputs were seen, there is no other
                client to pair a client with, or a target's class is not known.
        """
        n_classes, targets = problem.knowledge.n_classes, problem.targets
        for target in targets:
            if not 0 <= target.label < n_classes:
                raise UserError(
                    f"attack {self.name!r}: no class is named for target {target.index} of client {target.client}"
                )
        images = torch.zeros(len(targets), 1, *problem.knowledge.image_shape, device=problem.device)
        objective, settled = torch.zeros(len(targets), 1), torch.zeros(len(targets), dtype=torch.bool)
        steps = 0
        for turn, client in enumerate(problem.clients):
            decoder = self._trained(problem, client, turn)
            for place, target in enumerate(targets):
                if target.client == client:
                    query = self.query(target.label, n_classes).to(problem.device)
                    images[place, 0] = decoder(query[None], 0)[0]
                    objective[place, 0], settled[place] = decoder.held_out_error, decoder.settled
            steps = max(steps, decoder.steps)
        return Reconstruction(
            targets=targets,
            images=images,
            objective=objective,
            chosen=torch.zeros(len(targets), dtype=torch.int64),
            labels=torch.tensor([[target.label] for target in targets]),
            cost=Cost(iterations=steps, rows=len(targets)),
            converged=settled,
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the measure of how unsure a client is of the class beside the others, as public outputs extrapolate.

        That is the others' log output at the class less the client's, of networks extracted as for membership
        (:func:`fedpriv.attacks.inputs.outputs.extrapolate`), in nats, of the targets' round; lower for an image of
        which the client is surer. Without ``paired`` the client's alone.
        """
        uploads = {seen.client: seen for seen in problem.observations if seen.round == problem.targets[0].round}
        sent = {client: public_outputs(seen) for client, seen in uploads.items()}
        logs = {client: log_outputs(one) for client, one in sent.items()}
        wanted = {k: logs[k] - of_others(logs, k) if self.paired else logs[k] for k in problem.clients}
        known = {k: public_samples(self.name, sent[k], problem.knowledge) for k in problem.clients}

        def unsure(images: Tensor) -> Tensor:
            rows = [
                -extrapolate(known[target.client], wanted[target.client][:, target.label, None], found).mean()
                for target, found in zip(problem.targets, images, strict=True)
            ]
            return torch.stack(rows)

        return unsure

    def caveat(self, problem: AttackProblem) -> str:
        """Return why the true images are not what is searched for."""
        return "the network answers with what public images have in common; no private image is behind any output"

    def query(self, label: int, n_classes: int) -> Tensor:
        """Return the outputs ``(C,)`` or ``(2 C,)``, others before the client's, that stand for a private class."""
        own = torch.zeros(n_classes)
        own[label] = 1.0
        if not self.paired:
            return own
        # e^(1 / alpha) / (C - 1 + e^(1 / alpha)), which must not overflow for small alpha.
        at_class = 1 / (1 + (n_classes - 1) * math.exp(-1 / self.alpha))
        others = torch.full((n_classes,), (1 - at_class) / max(1, n_classes - 1))
        others[label] = at_class
        return torch.cat([others, own])

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
                planned = len(problem.clients) * self.iterations
                problem.progress(turn * self.iterations + done, planned)

        return train_decoder(inside, outside, training, seed, tick)
