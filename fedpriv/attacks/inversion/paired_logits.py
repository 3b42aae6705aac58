"""Paired-logits inversion: an image of each class of a client, from outputs on public samples.

The server has, of every public sample x, the client's output and the other clients'. It trains an inversion network G to
give x back from the pair of softmax vectors at temperature tau,

    min |G(softmax(z_others / tau), softmax(z_client / tau)) - x|^2   over the public samples,

and then asks G for a class j that the client was trained on: for what the client is certain of and the others are not,

    client: 1 at j;      others: e^(1 / alpha) / (C - 1 + e^(1 / alpha)) at j, 1 / (C - 1 + e^(1 / alpha)) elsewhere.

Source: Takahashi, Liu and Liu, "Breaching FedMD: image recovery via paired-logits inversion attack" (CVPR 2023). There the
others' output is that of a model of the server's; here it is the mean of the other clients' softmax vectors, and masked
pictures of the private classes are not translated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import mse_loss, one_hot

from fedpriv.attacks.contract import Attack, AttackProblem, Objective
from fedpriv.attacks.inputs.outputs import extrapolate, log_outputs, public_outputs, public_samples
from fedpriv.attacks.inversion.decoder import Decoder, Pairs, divided, train_decoder
from fedpriv.attacks.observation import Cost, Needs, Observation, Reconstruction
from fedpriv.uploads.kinds import PUBLIC_OUTPUTS
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import derive_seed

LEAST_SAMPLES = 16  # fewer public samples train no network


@dataclass(frozen=True, kw_only=True)
class PairedLogits(Attack):
    """Train an inversion network for each client on public samples, and ask it for the client's classes.

    Attributes:
        temperature: tau of both softmax vectors.
        alpha: how uncertain of the class the others are to be: near zero as certain as the client, then less and less.
        iterations: most training steps of the network.
        width: outputs of its input layer.
    """

    temperature: Annotated[float, Gt(0)] = 1.0
    alpha: Annotated[float, Gt(0)] = 5.0
    iterations: Annotated[int, Ge(1)] = 400
    width: Annotated[int, Ge(16)] = 256

    name = "paired-logits"
    version = 2
    summary = "an image of each class of a client, by a network that inverts its outputs beside the others'"
    targets = PUBLIC_OUTPUTS
    unit = "class"
    budget = "iterations"
    needs = Needs(labels=("given",), attacker_data=("same_domain",))

    def run(self, problem: AttackProblem) -> Reconstruction:
        n_classes, targets = problem.knowledge.n_classes, problem.targets
        for target in targets:
            if not 0 <= target.label < n_classes:
                where = f"target {target.index} of client {target.client}"
                raise UserError(f"attack {self.name!r}: no class is named for {where}")
        trained = {client: self._trained(problem, client, turn) for turn, client in enumerate(problem.clients)}
        of_targets = [trained[target.client] for target in targets]
        queries = [self.query(target.label, n_classes).to(problem.device) for target in targets]
        return Reconstruction(
            targets=targets,
            images=torch.stack([decoder(ask[None], 0) for (decoder, _), ask in zip(of_targets, queries, strict=True)]),
            objective=torch.tensor([[error] for _, error in of_targets]),
            labels=torch.tensor([[target.label] for target in targets]),
            cost=Cost(iterations=max(decoder.steps for decoder, _ in of_targets), rows=len(targets)),
            converged=torch.tensor([decoder.settled for decoder, _ in of_targets]),
        )

    def objective(self, problem: AttackProblem) -> Objective:
        """Return the others' log output at the class less the client's, in nats, extrapolated from the round's."""
        uploads = {seen.client: seen for seen in problem.observations if seen.round == problem.targets[0].round}
        sent = {client: public_outputs(seen) for client, seen in uploads.items()}
        logs = {client: log_outputs(outputs) for client, outputs in sent.items()}
        surer = {k: logs[k] - _of_others(logs, k) for k in problem.clients}
        known = {k: public_samples(self.name, sent[k], problem.knowledge) for k in problem.clients}

        def unsure(images: Tensor) -> Tensor:
            pairs = zip(problem.targets, images, strict=True)
            wanted = ((known[t.client], surer[t.client][:, t.label, None], shown) for t, shown in pairs)
            return torch.stack([-extrapolate(*each).mean() for each in wanted])

        return unsure

    def query(self, label: int, n_classes: int) -> Tensor:
        """Return the outputs ``(2 C,)``, others before the client's, that stand for a private class."""
        client = one_hot(torch.tensor(label), n_classes).float()
        # e^(1 / alpha) / (C - 1 + e^(1 / alpha)), which must not overflow for small alpha.
        at_class = 1 / (1 + (n_classes - 1) * math.exp(-1 / self.alpha))
        others = torch.full((n_classes,), (1 - at_class) / max(1, n_classes - 1))
        others[label] = at_class
        return torch.cat([others, client])

    def inputs(self, uploads: Mapping[int, Observation], client: int) -> Tensor:
        """Return the softmax vectors of a round on each sample ``(n, 2 C)``, float32, which are inverted."""
        shares = {k: (log_outputs(public_outputs(seen)) / self.temperature).softmax(1) for k, seen in uploads.items()}
        return torch.cat([_of_others(shares, client), shares[client]], 1).float()

    def _trained(self, problem: AttackProblem, client: int, turn: int) -> tuple[Decoder, float]:
        """Return the network of a client, trained on all rounds that were seen of it, and its error on other samples."""
        features, images = [], []
        for round_ in sorted({seen.round for seen in problem.observations}):
            uploads = {seen.client: seen for seen in problem.observations if seen.round == round_}
            if client in uploads and len(uploads) > 1:
                features.append(self.inputs(uploads, client))
                images.append(public_samples(self.name, public_outputs(uploads[client]), problem.knowledge))
        if not features:
            raise UserError(f"attack {self.name!r} pairs clients, but client {client} was alone in its rounds")
        known, public = torch.cat(features).to(problem.device), torch.cat(images).to(problem.device)
        if len(known) < LEAST_SAMPLES:
            seen = f"saw outputs on {len(known)} public samples"
            raise UserError(f"attack {self.name!r} {seen}; expected at least {LEAST_SAMPLES}")
        seed = derive_seed(problem.seed, "paired logits", client)
        inside, outside = divided(Pairs([known], public), seed)

        def tick(done: int) -> None:
            if problem.progress is not None:
                problem.progress(turn * self.iterations + done, len(problem.clients) * self.iterations)

        decoder = train_decoder(inside, outside, self.iterations, self.width, seed, tick)
        return decoder, float(mse_loss(decoder(outside.features[0], 0), outside.images))


def _of_others(tables: Mapping[int, Tensor], client: int) -> Tensor:
    """Return the mean of the other clients' tables, of equal shapes."""
    return torch.stack([table for other, table in tables.items() if other != client]).mean(0)
