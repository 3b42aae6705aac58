"""Prototypes recovered from a FedRE run by each rung of the ladder: prior, one round's posterior, many rounds.

fedpriv train --method fedre --rounds 30 --lr 0.03 --strangers 0.5 --capture all --out RUN
python benchmarks/entangled_ladder.py RUN
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedpriv.attacks.observation import DataAccess, Knowledge, KnowledgeCard, Observation, TargetId
from fedpriv.attacks.read.target_features import observation_of
from fedpriv.attacks.recover.unmixing import UnmixedInversion
from fedpriv.attacks.recover.unmixing_once import PriorUnmixing, Source, posterior_mean
from fedpriv.evidence.gather import gather, truths
from fedpriv.experiment.federation import prepare
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.scoring.leakage import relative_error
from fedpriv.scoring.vectors import identify_features
from fedpriv.wire.payloads import Entangled, get_payload

Guess = Callable[[tuple[Observation, ...], TargetId], Tensor]


def one_round(knowledge: Knowledge, source: Source, *, posterior: bool = False) -> Guess:
    """Return a guesser of one class's prototype ``(d,)`` from one upload."""

    def guess(observations: tuple[Observation, ...], target: TargetId) -> Tensor:
        sent = get_payload(observation_of(observations, target).upload, Entangled)
        held = (sent.label_encoding.abs() > 0).nonzero().squeeze(1)
        weights, place = sent.label_encoding[held], held.tolist().index(target.label)
        prior = PriorUnmixing(source=source).prior(observations, target, knowledge)[held]
        return (posterior_mean(sent.feature, weights, prior) if posterior else prior)[place]

    return guess


def all_rounds(observations: tuple[Observation, ...], target: TargetId, knowledge: Knowledge) -> Tensor:
    """Return what unmixing over all rounds finds without images."""
    found = UnmixedInversion(prior="none").unmixed(observations, target.client, knowledge)
    return found.prototypes[found.classes.tolist().index(target.label)]


def main() -> None:
    """Print one line a rung."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = RunDirectory.open(arguments.run)
    federation = prepare(run.config, torch.device("cpu"))
    data: DataAccess = "none" if federation.attacker is None else "same_domain"
    card = KnowledgeCard(attacker_data=data, rounds_seen=len(run.captured_rounds()))
    evidence = gather(run, federation, "entangled", card, n_targets=10**9, seed=arguments.seed, unit="class")
    newest = tuple(o for o in evidence.observations if o.round == max(seen.round for seen in evidence.observations))
    weights = {o.client: get_payload(o.upload, Entangled).label_encoding for o in newest}
    targets = tuple(t for t in evidence.targets if weights[t.client][t.label].abs() > 0)
    true = truths(run, federation, "entangled", targets, seed=arguments.seed, unit="class")
    wanted = torch.stack([truth.feature for truth in true if truth.feature is not None])
    share = torch.tensor([float(weights[t.client][t.label]) for t in targets])
    top = torch.tensor([bool(weights[t.client].argmax() == t.label) for t in targets])
    knowledge = evidence.knowledge
    rungs: dict[str, Guess] = {
        "prior of others' uploads alone": one_round(knowledge, "uploads"),
        "posterior, prior of uploads": one_round(knowledge, "uploads", posterior=True),
    }
    if data == "same_domain":
        rungs["prior of own images alone"] = one_round(knowledge, "images")
        rungs["posterior, prior of own images"] = one_round(knowledge, "images", posterior=True)
    print(f"{len(targets)} prototypes of {len(weights)} clients, mean weight {share.mean():.2f}")
    print(f"{'rung':34} {'error':>7} {'error, top class':>16} {'identified':>10}")
    for name, guess in rungs.items():
        report(name, torch.stack([guess(newest, t) for t in targets]), wanted, targets, top)
    if len(run.captured_rounds()) > 1:
        found = torch.stack([all_rounds(evidence.observations, t, knowledge) for t in targets])
        report(f"unmix, {len(run.captured_rounds())} rounds", found, wanted, targets, top)


def report(name: str, found: Tensor, wanted: Tensor, targets: tuple[TargetId, ...], top: Tensor) -> None:
    """Print the median relative error, over all classes and over each client's heaviest, and the identification rate."""
    errors = relative_error(found, wanted)
    hits, chance = identify_features(found, wanted, [t.client for t in targets])
    print(
        f"{name:34} {errors.median():7.1%} {errors[top].median():16.1%} {sum(hits) / len(hits):10.1%}"
        f"  (chance {chance:.0%})"
    )


if __name__ == "__main__":
    main()
