"""The positive control: the same attack on uploads in which one auxiliary image a mean was planted, without a defense.

Hiding is at its least there, so that an attack that does not find a planted image is not able to find a client's either, and
its failure says nothing. Planted images are decoys, which neither the attacker owns nor baselines are made of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedpriv.attacks.contract import AttackProblem
from fedpriv.attacks.inference.base import Inference
from fedpriv.attacks.inputs.targets import represented
from fedpriv.attacks.observation import Knowledge, Observation, TargetId
from fedpriv.datasets.types import Samples
from fedpriv.eval import membership
from fedpriv.eval.inference_case import InferenceCase
from fedpriv.eval.records import Planted, Provenance
from fedpriv.sources.case import Case
from fedpriv.sources.truth import Holdings, Pool, Truth, image_key
from fedpriv.uploads.kinds import MIXTURES, VECTORS
from fedpriv.uploads.payload import Payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator

MOST_TARGETS = 10
"""Planted targets, of as many clients."""

MOST_OTHERS = 8
"""Decoys of a class that planted members are told from."""


@dataclass
class Planting:
    """Decoys that take the place of clients' images: for each client one a class, or of rows one a row.

    None of them is an image that the attacker owns (``public``): it would know the answer.
    """

    pools: Mapping[int, Pool]
    seed: int
    device: torch.device = torch.device("cpu")  # where extractors compute
    public: Tensor | None = None
    chosen: dict[tuple[int, int, int], int] = field(default_factory=dict)

    @cached_property
    def _owned(self) -> frozenset[bytes]:
        return frozenset() if self.public is None else frozenset(map(image_key, self.public.cpu()))

    def decoy(self, client: int, label: int, place: int = 0) -> int | None:
        """Return the position of the decoy of a class that stands in the place of a row; None where there is none."""
        pool, key = self.pools[client], (client, label, place)
        if key not in self.chosen:
            of_class = (pool.decoy_labels == label).nonzero().flatten()
            of_class = of_class[[image_key(pool.decoys[place]) not in self._owned for place in of_class.tolist()]]
            if not len(of_class):
                return None
            order = torch.randperm(len(of_class), generator=generator(self.seed, "planted", client, label))
            self.chosen[key] = int(of_class[order[place % len(of_class)]])
        return self.chosen[key]

    def upload(self, seen: Observation, knowledge: Knowledge) -> Observation | None:
        """Return an observation whose vectors are those of planted images; None where that cannot be done."""
        payload = VECTORS.first(seen.upload)
        key = (seen.round, seen.client)
        extractor = knowledge.earlier.get(key, knowledge.extractors.get(seen.client))
        if payload is None or extractor is None or seen.client not in self.pools:
            return None
        rows = self._rows(seen.client, payload)
        if rows is None:
            return None
        places, weights = rows
        images = self.pools[seen.client].decoys[torch.tensor(places)].float()
        values = weights @ represented(extractor, images, self.device).float().cpu()
        name = str(payload.values_field())
        sent: Tensor = getattr(payload, name)
        if values.numel() != sent.numel():  # the extractor is not the upload's, or a defense changed its shape
            return None
        changed = {name: values.reshape(sent.shape).to(sent)}
        counts = payload.said("counts")
        if counts is not None:
            changed[str(payload.field_that_says("counts"))] = torch.ones_like(counts)
        planted = replace(payload, **changed)
        return replace(seen, upload=tuple(planted if item is payload else item for item in seen.upload))

    def _rows(self, client: int, payload: Payload) -> tuple[list[int], Tensor] | None:
        """Return the decoys and the weights ``(rows, decoys)`` that make the rows of a payload."""
        if payload.kind in MIXTURES:
            shares = payload.said("weights")
            labels = [] if shares is None else (shares.abs() > 0).nonzero().flatten().tolist()
            places = [self.decoy(client, label) for label in labels]
            weights = None if shares is None else shares[labels][None].float().cpu()
        else:
            said = payload.said("classes")
            labels = [] if said is None else said.tolist()
            numbers = [labels[:index].count(label) for index, label in enumerate(labels)]
            places = [self.decoy(client, label, number) for label, number in zip(labels, numbers, strict=True)]
            weights = torch.eye(len(labels))
        known = [place for place in places if place is not None]
        return (known, weights) if labels and len(known) == len(places) and weights is not None else None


def planted_observations(
    planting: Planting, observations: Sequence[Observation], knowledge: Knowledge
) -> tuple[Observation, ...] | None:
    """Return observations with planted uploads, of the clients of which all could be planted; None for none."""
    made = [(seen.client, planting.upload(seen, knowledge)) for seen in observations]
    lost = {client for client, planted in made if planted is None}
    return tuple(planted for client, planted in made if planted is not None and client not in lost) or None


def planted_images(
    problem: AttackProblem, case: Case, pools: Mapping[int, Pool], about: Provenance
) -> tuple[AttackProblem, tuple[Truth, ...]] | None:
    """Return the problem of an attack on planted uploads, and its truths; None where nothing can be planted.

    Args:
        problem: of the attack; its targets are replaced.
        case: the same with the clients' real extractors, which the attack need not be granted.
        pools: client -> its pool.
        about: says which clients, or images, are units: one target of each is planted.
    """
    planting = Planting(pools, problem.seed, problem.device, problem.knowledge.public_images)
    observations = planted_observations(planting, case.observations, case.knowledge)
    if observations is None:
        return None
    there = {(seen.round, seen.client) for seen in observations}
    first: dict[int, TargetId] = {}
    for unit, target in zip(about.units_of([target.client for target in case.targets]), case.targets, strict=True):
        if (target.round, target.client) in there and target.label >= 0:
            first.setdefault(unit, target)
    targets = tuple(sorted(list(first.values())[:MOST_TARGETS], key=lambda one: (one.round, one.client, one.index)))
    truths = []
    for target in targets:
        seen = next(o for o in observations if (o.round, o.client) == (target.round, target.client))
        payload = VECTORS.first(seen.upload)
        assert payload is not None
        said = None if payload.kind in MIXTURES else payload.said("classes")
        place = 0 if said is None else said[: target.index].tolist().count(target.label)
        decoy = planting.decoy(target.client, target.label, place)
        assert decoy is not None
        image = pools[target.client].decoys[decoy][None].float()
        truths.append(Truth.equal(image, torch.tensor([target.label]), pools[target.client]))
    if not targets:
        return None
    knowledge = problem.knowledge
    if knowledge.defended:  # else what was trained for all clients serves again
        attacked = {target.client for target in targets}
        extractors = {client: each for client, each in knowledge.extractors.items() if client in attacked}
        knowledge = replace(knowledge, defended={}, extractors=extractors)
    return replace(problem, observations=observations, knowledge=knowledge, targets=targets), tuple(truths)


def planted_membership(
    inference: Inference, case: InferenceCase, pools: Mapping[int, Pool], about: Provenance
) -> Planted | None:
    """Return the area above the baseline that membership inference has on planted members; None where there are none."""
    planting = Planting(pools, case.seed, case.truth.device, case.evidence.knowledge.public_images)
    evidence = _planted_case(planting, case.evidence)
    if evidence is None:
        return None
    earlier = tuple(made for item in case.earlier if (made := _planted_case(planting, item)) is not None)
    images, labels, train, held_out = list[Tensor](), list[Tensor](), dict[int, np.ndarray](), dict[int, np.ndarray]()
    count = 0
    for client in {seen.client for seen in evidence.observations}:
        pool = pools[client]
        members = sorted({place for (k, _, _), place in planting.chosen.items() if k == client})
        others = []
        for label in pool.decoy_labels[members].unique().tolist():
            of_class = [i for i in (pool.decoy_labels == label).nonzero().flatten().tolist() if i not in members]
            others += of_class[:MOST_OTHERS]
        group = torch.tensor([*members, *others], dtype=torch.int64)
        images.append(pool.decoys[group].float())
        labels.append(pool.decoy_labels[group])
        train[client] = np.arange(count, count + len(members))
        held_out[client] = np.arange(count + len(members), count + len(group))
        count += len(group)
    truth = Holdings(Samples(torch.cat(images), torch.cat(labels)), train, {}, held_out, case.truth.device)
    planted = replace(case, evidence=evidence, earlier=earlier, truth=truth, told={})
    try:
        record = membership.evaluate(inference, planted, about)
    except UserError:  # a class has one decoy, or no client is left
        return None
    item = next(one for one in record.comparisons if one.measure == "membership")
    return Planted(mean=item.mean, ci95=item.ci95, n=item.n, n_clients=item.n_clients, least=item.least)


def _planted_case(planting: Planting, case: Case) -> Case | None:
    observations = planted_observations(planting, case.observations, case.knowledge)
    if observations is None:
        return None
    return replace(case, observations=observations, shuffled=None, knowledge=replace(case.knowledge, defended={}))
