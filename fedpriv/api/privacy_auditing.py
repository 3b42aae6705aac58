"""The verb ``audit_dp``: is the epsilon true that somebody claims?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from fedpriv.api.named_code import imports_what_is_named
from fedpriv.api.training import Run
from fedpriv.dp.audit import LEAST_CANARIES, plan_audit
from fedpriv.dp.verdict import StatedClaim
from fedpriv.eval.records import PrivacyAuditRecord
from fedpriv.eval.storage import load_privacy_audit, write_record
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.integrations.run import is_recorded
from fedpriv.sources.run import prepare
from fedpriv.study.saving import Scratch, Tabular, place
from fedpriv.study.settings import (
    FLAG_NAMES,
    Circumstances,
    FederationSettings,
    named_config,
    refuse_small,
    refuse_unknown,
)
from fedpriv.util import files, folders
from fedpriv.util.compute import pick_device
from fedpriv.util.config import mapping, parse
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import call
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT


@dataclass(frozen=True)
class PrivacyAudit(Tabular):
    """An audit of a claim of differential privacy.

    A temporary folder (no ``out``) is removed when nothing refers to this object any more.

    Attributes:
        path: folder of the record ``audit-dp.json``.
        record: claim, bounds and verdict.
    """

    path: Path
    record: PrivacyAuditRecord
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)

    @property
    def verdict(self) -> str:
        """The verdict in words, with every figure that it rests on."""
        return self.record.sentence

    @property
    def epsilon(self) -> float | None:
        """The largest lower bound; None for more than any number."""
        known = [bound.epsilon for bound in self.record.bounds]
        return None if None in known else max(item for item in known if item is not None)

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the bounds, one row each, beside what is claimed and what clip and noise imply."""
        claim = self.record.claim
        about = {"claimed": claim and claim.epsilon, "implied": claim and claim.implied, "delta": self.record.delta}
        return [
            {"bound": bound.name, "epsilon_at_least": bound.epsilon, **about, "given": bound.given}
            for bound in self.record.bounds
        ]


class PrivacyAuditSettings(Circumstances, FederationSettings, total=False):
    """Keyword arguments of an audit beside its canaries, and of the federation where no run says how that is made.

    Attributes:
        method: a name of ``fedpriv list methods`` (default ``fedavg``).
        device: ``auto`` (default), ``cpu``, ``cuda`` or ``cuda:N``.
        download: fetch the data set if it is missing.
    """

    method: str | None
    device: str
    download: bool


@imports_what_is_named
def audit_dp(
    run: Run | str | Path | None = None,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    claim: Mapping[str, Any] | Sequence[str] = (),
    seed: int = 0,
    **settings: Unpack[PrivacyAuditSettings],
) -> PrivacyAudit:
    """Put a claim of differential privacy to the test: a lower bound on epsilon beside the one that is claimed.

    Canaries, each in or not by a coin, pass what the defense does: uploads as far apart as neighbours may be behind a
    defense of uploads, or images of the largest gradients within local training (one run). How many coins are told from what
    the server sees bounds epsilon from below; no code of the defense is trusted.

    >>> import fedpriv
    >>> found = fedpriv.audit_dp(
    ...     dataset="digits", per_class=30, clients=3, models="small-cnn", canaries=100,
    ...     defense="local-dp:clipping_norm=1,sensitivity=0.05,epsilon=1")
    >>> found.record.verdict, round(found.record.claim.implied, 1)
    ('contradicted', 68.5)

    Args:
        run: a run of :func:`fedpriv.train`, or its folder, whose settings are taken; None for the settings given here.
        canaries: how many; a bound of epsilon takes some 6 e^epsilon of them, of a Gaussian mechanism a few hundred.
        confidence: that no bound is above the truth, in (0.5, 1).
        claim: what is claimed, in place of what the defenses say: ``epsilon``, ``delta``, ``unit`` (client or image), ``of``
            (upload or run), ``neighbours`` (replaced or absent), ``gaussian``; without epsilon a bound alone.
        seed: of coins, canaries and noise, and of the federation.
        settings: see :class:`PrivacyAuditSettings`, :class:`FederationSettings` and :class:`Circumstances`.
    """
    refuse_unknown(settings, PrivacyAuditSettings)
    refuse_small({"canaries": canaries}, ("canaries",), LEAST_CANARIES)
    if not 0.5 < confidence < 1:
        raise UserError(f"confidence={shown(confidence)}: expected a share between 0.5 and 1")
    values = mapping("claim", claim)
    claimed = parse(StatedClaim, values, "claim") if values else None
    path = None if run is None else run.path if isinstance(run, Run) else given_path("run", run)
    stated = {name: value for name, value in settings.items() if name in (*FLAG_NAMES, "method") and value is not None}
    chosen = {"canaries": canaries, "confidence": confidence, "claim": claim, "seed": seed, **stated}
    whole = {name: value for name, value in chosen.items() if value != ()}
    listener = settings.get("listener", SILENT)
    command = listener.command or call("audit_dp", *([] if path is None else [str(path)]), **whole)
    folder, scratch = place(settings.get("out"))
    folders.refuse_overlap(folder, {"run": path})
    force = settings.get("force", False)
    folders.check_free(folder, force=force)
    method = settings.get("method") or "fedavg"
    config = named_config(method, settings, seed) if path is None else _config_of(path, stated)
    device = pick_device(settings.get("device", "auto"))
    federation = prepare(config, device, download=settings.get("download", False))
    planned = plan_audit(federation, canaries, confidence, claimed, seed)
    with files.sharing(settings.get("share_group", False)), folders.output(folder, "audit-dp", force=force):
        write_record(folder, planned.run(listener, command))
    return PrivacyAudit(folder, load_privacy_audit(folder), scratch)


def _config_of(path: Path, stated: Mapping[str, Any]) -> RunConfig:
    """Return the federation of the run at a path, beside which no other is described."""
    if is_recorded(path):
        raise UserError(f"run {path}: recorded elsewhere; state its settings and defense instead")
    if stated:
        raise UserError(f"run says how the federation is made; drop {', '.join(sorted(stated))}")
    with folders.read(path):
        return RunDirectory.open(path).config
