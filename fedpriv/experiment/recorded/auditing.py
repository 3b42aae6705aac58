"""An audit of a claim by a recorded run: by the canaries that its clients sent, and by how large its noise can be."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedpriv.algebra.gaussian_mechanism import gaussian_epsilon
from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.dp.auditing import LEAST_CANARIES, AuditSettings, audit_record
from fedpriv.dp.claims import Claim, chosen_claim
from fedpriv.dp.verdict import GAUSSIAN, LESS_NOISE, Audited, Design, audit_scores
from fedpriv.federation.defense import DefensePipeline, ProtectionPlan, defense_facts
from fedpriv.integrations.canaries import coin, direction
from fedpriv.integrations.run import RecordedRun
from fedpriv.scoring.records.privacy_audit import PrivacyAuditRecord
from fedpriv.sources.facts import OwnerFacts, read_facts
from fedpriv.sources.recorded import attackable_rounds, gather_uploads
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Listener

SIZE: Final = "size of the noise"
TARGET: Final = "model"
SUMS: Final = "the server sees sums alone, and claims of single uploads cannot be told from them"


class Uploads(NamedTuple):
    """The uploads of a recorded run, as an audit reads them.

    Attributes:
        squared: sum of squared lengths of all updates.
        entries: of all updates together.
        number: of updates.
        scores: along the canaries' direction, where there are canaries; else empty.
        coins: of the canaries, as their seed says.
        notices: uploads that were left out, and why.
    """

    squared: float
    entries: int
    number: int
    scores: NDArray[np.float64]
    coins: NDArray[np.bool_]
    notices: tuple[str, ...]


def audit_recorded(path: Path, settings: AuditSettings, facts: Any, listener: Listener) -> PrivacyAuditRecord:
    """Audit the claim of the defense that the facts name.

    Noise is measured in every upload: an update is never shorter than its noise, but for chance, so the noise is at most
    so large; with the clip that the defense says, that bounds the epsilon of a Gaussian mechanism from below. Where clients
    sent canaries (``canaries`` among the facts), their coins are told from the uploads besides.

    Raises:
        UserError: where nothing is claimed, only sums were seen, or nothing can be told from these uploads.
    """
    run, details = RecordedRun.open(path), read_facts(path, facts)
    pipeline = DefensePipeline(build_defenses([parse_choice(text) for text in details.facts.defense]))
    if pipeline.server_view == "sum":
        raise UserError(f"{details.where}: {SUMS}")
    rounds = attackable_rounds(run, details, summed=False)
    privacy = pipeline.privacy(_plan(details.facts.method or "recorded", len(rounds)))
    claim = chosen_claim(privacy, settings.claim, settings.claimant, len(rounds))
    seed = details.facts.canaries
    clip = claim.bound if claim.unit == "client" and claim.gaussian else None
    if seed is None and clip is None:
        raise UserError(
            f"{details.where}: no canaries: clients have to send them (mods=[..., fedpriv.flower.canary(7)], canaries = 7) "
            "or the claim has to be that of a Gaussian mechanism of one client with a clip (gaussian=true, bound=1)"
        )
    if seed is not None and claim.rounds != 1:
        raise UserError(
            f"{details.where}: canaries: their coins are tossed anew each round; state a claim of one upload"
        )
    with listener.progress("reading uploads") as report:
        uploads = _read(run, details, rounds, seed, report)
    scored = len(uploads.scores) >= LEAST_CANARIES and 0 < uploads.coins.sum() < len(uploads.coins)
    design = Design(settings.confidence, claim.delta, independent=True, gaussian=claim.gaussian)
    return audit_record(
        _audited(uploads, claim, design, clip, scored=scored),
        claim,
        settings,
        design,
        method=details.facts.method or "recorded",
        dataset=details.facts.dataset or "recorded",
        defense=" + ".join(defense_facts(item).label for item in pipeline.defenses) or "none",
        way="recorded canaries" if scored else "recorded noise",
        canaries=len(uploads.scores) if scored else uploads.number,
        called="canaries" if scored else "recorded uploads",
        included=int(uploads.coins.sum()) if scored else 0,
        given={SIZE: f"{GAUSSIAN}, and clips updates to {clip}"},
        notices=uploads.notices,
    )


def _audited(uploads: Uploads, claim: Claim, design: Design, clip: float | None, *, scored: bool) -> Audited:
    """Return the bounds by canaries and by the noise, which share what may be wrong."""
    alpha = 1 - design.confidence
    shares = (2 + design.gaussian if scored else 0) + (clip is not None)
    audited = Audited({}, 0.0, 0.0)
    if scored:
        part = replace(design, confidence=1 - alpha * (2 + design.gaussian) / shares)
        audited = audit_scores(uploads.scores, uploads.coins, part)
    if clip is not None:
        releases = 1 if claim.stated is None else claim.stated.releases
        noise = _largest_noise(uploads, alpha / shares) / (2 * clip if claim.replaced else clip)
        sizes = [gaussian_epsilon(noise / less, claim.delta, releases) for less in (1, LESS_NOISE)]
        audited = Audited({**audited.bounds, SIZE: sizes[0]}, math.inf, max(audited.control, sizes[1]))
    return audited if audited.bounds else Audited({"one run": 0.0}, 0.0, 0.0)


def _largest_noise(uploads: Uploads, alpha: float) -> float:
    """Return a standard deviation that the noise is above of in a share ``alpha`` of all runs at most.

    The squared length of update and noise together is, whatever the update, no smaller in distribution than that of the
    noise alone, which is its variance times chi squared of as many degrees as there are entries.
    """
    from scipy.special import gammaincinv  # type: ignore[import-untyped]

    return math.sqrt(uploads.squared / (2 * float(gammaincinv(uploads.entries / 2, alpha))))


def _read(run: RecordedRun, owner_facts: OwnerFacts, rounds: tuple[int, ...], seed: int | None, report: Any) -> Uploads:
    squared, entries, number = 0.0, 0, 0
    scores: list[float] = []
    coins: list[bool] = []
    notices: list[str] = []
    for done, round_ in enumerate(rounds, start=1):
        gathered = gather_uploads(run, owner_facts, TARGET, round_, None, summed=False)
        notices += gathered.notices
        if gathered.summed:
            raise UserError(f"{run.path}: {SUMS}")
        for client, update in gathered.uploads[-1].items():
            before = [_array(value) for value in update.before.values()]
            after = [_array(update.after[name]) for name in update.before]
            moved = [new.astype(np.float64) - old for old, new in zip(before, after, strict=True)]
            squared += sum(float(np.square(item).sum()) for item in moved)
            entries += sum(entry.size for entry in moved)
            number += 1
            if seed is not None:
                rays = direction(seed, before)
                coins.append(coin(seed, client, before))
                scores.append(float(sum(float((one * ray).sum()) for one, ray in zip(moved, rays, strict=True))))
        report(done, len(rounds), f"round {round_}")
    if not entries:
        raise UserError(f"{run.path}: no update of weights is recorded")
    return Uploads(squared, entries, number, np.array(scores), np.array(coins, dtype=np.bool_), tuple(notices))


def _array(value: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = value.detach().cpu().float().numpy()
    return array


def _plan(method: str, rounds: int) -> ProtectionPlan:
    """Return a federation that is known by its uploads alone, as defenses see it."""
    unknown: dict[str, Any] = {"accepted_substitutes": (), "blueprints": (), "train_sizes": ()}
    unknown |= {"n_clients": 1, "rounds": rounds, "batch_size": 1}
    return ProtectionPlan(method=method, uploads=(TARGET,), broadcasts=(TARGET,), **unknown)
