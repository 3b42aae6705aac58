"""The verbs on one federation: ``train``, which keeps all that an attack needs, ``cost``, and ``audit_dp``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

from fedpriv.api.named_code import verb
from fedpriv.datasets.partition import class_counts
from fedpriv.dp.audit import LEAST_CANARIES, plan_audit
from fedpriv.dp.verdict import StatedClaim
from fedpriv.eval.records import PrivacyAuditRecord
from fedpriv.eval.storage import load_privacy_audit, write_record
from fedpriv.federation.cost import communication, with_models
from fedpriv.federation.prepared import load_division
from fedpriv.federation.run_directory import RunConfig, RunDirectory
from fedpriv.federation.summary import RunSummary
from fedpriv.integrations.run import is_recorded
from fedpriv.methods import METHODS
from fedpriv.models import default_width, family
from fedpriv.models.build import blueprint_of
from fedpriv.models.split import Blueprint
from fedpriv.sources.run import prepare
from fedpriv.study.saving import Scratch, Tabular, copy_folder, place
from fedpriv.study.settings import (
    DIVISION_SETTINGS,
    FLAG_NAMES,
    Circumstances,
    FederationSettings,
    engine_choice,
    named_config,
    refuse_small,
    to_resume,
)
from fedpriv.study.training import train_run
from fedpriv.uploads.ledger import FederationSizes
from fedpriv.util import folders
from fedpriv.util.compute import pick_device
from fedpriv.util.config import mapping, parse, texts
from fedpriv.util.errors import UserError, shown
from fedpriv.util.escape import call
from fedpriv.util.foreign import given_path
from fedpriv.util.parallel import SILENT
from fedpriv.util.registry import allowed


@dataclass(frozen=True)
class Run(Tabular):
    """A finished run: a folder, and what it says of itself.

    A temporary run (``train`` without ``out``) is removed when nothing refers to this object any more; :meth:`save`
    keeps it.

    Attributes:
        path: the run directory.
        code: modules that its maker named, which verbs may import again where they get this object; no file stores them.
    """

    path: Path
    _scratch: Scratch | None = field(default=None, repr=False, compare=False)
    code: frozenset[str] = field(default=frozenset(), repr=False, compare=False)

    @property
    def config(self) -> RunConfig:
        """Everything that determined the run."""
        return RunDirectory.open(self.path).config

    @property
    def summary(self) -> RunSummary:
        """Accuracy, communication, seconds and, where a defense accounts for it, privacy: ``summary.json``."""
        return RunDirectory.open(self.path).summary

    @property
    def accuracy(self) -> float:
        """Accuracy over the test images of all clients after local training of the last round, in [0, 1]."""
        return self.summary.accuracy["after_training"].pooled

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return accuracy by round, one row a round."""
        return [
            {"round": line.round}
            | {f"{when}_{name}": number for when, result in line.accuracy.items() for name, number in result}
            for line in RunDirectory.open(self.path).rounds()
        ]

    def save(self, out: str | Path, *, force: bool = False) -> Run:
        """Copy the run to a folder that stays, and return it from there."""
        copy_folder(self.path, Path(out), "run", force=force)
        return Run(Path(out), code=self.code)


class TrainSettings(Circumstances, FederationSettings, total=False):
    """Keyword arguments of ``train`` beside the settings of the federation."""

    resume: bool  # go on with the interrupted run in ``out``, as it was configured
    device: str  # ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``
    workers: int | str  # processes that run the clients of a round, or ``auto`` (default 1), with equal results
    download: bool  # fetch the data set if it is missing
    engine: str | None  # where clients run: ``local`` (default) or ``flower`` (docs/engines.md), with equal results
    client_timeout: float | None  # with ``flower``: seconds in which each client of a round must answer (default 600)


@verb(TrainSettings)
def train(method: str | None = None, *, seed: int | None = None, **settings: Unpack[TrainSettings]) -> Run:
    """Train a federation and store what crossed the wire.

    >>> import fedpriv
    >>> run = fedpriv.train("fedgh", dataset="digits", per_class=20, clients=3, rounds=1)
    >>> run.config.method, 0 <= run.accuracy <= 1
    ('fedgh', True)

    Args:
        method: a name of ``fedpriv list methods`` (default ``fedre``).
        seed: of every random draw (default 0).
        settings: see :class:`TrainSettings`, :class:`FederationSettings` and :class:`Circumstances`.

    Raises:
        WorkError: where a client's node failed or did not answer; what is done is kept, and ``resume`` goes on with it.
    """
    given: dict[str, Any] = {"method": method, "seed": seed, **settings}
    names = ("engine", "client_timeout")
    chosen = {name: given[name] for name in names if given.get(name) is not None}
    how = {name: given[name] for name in ("device", "workers", "download", "resume", "force") if name in given}
    if settings.get("resume"):
        extra = [name for name in ("method", "seed") if given[name] is not None]
        extra += [name for name in settings if name in (*FederationSettings.__annotations__, *chosen)]
        path, scratch = to_resume(settings.get("out"), extra, force=settings.get("force")), None
        config = RunDirectory.open(path).config
    else:
        config = replace(named_config(method or "fedre", settings, seed or 0), engine=engine_choice(chosen))
        path, scratch = place(settings.get("out"))
    train_run(path, config, listener=settings.get("listener", SILENT), **how)
    return Run(path, scratch, allowed())


_DATA = (*DIVISION_SETTINGS, "data_dir", "dataset", "download", "partition", "per_class", "seed")
"""Whoever sets one of these wants sizes from data, which gives the following."""
_STATED = ("classes", "pairs", "samples", "channels")


class CostSettings(FederationSettings, total=False):
    """The sizes that a count needs, stated or, where ``classes`` is not given, taken from data."""

    classes: int  # number of classes C
    pairs: int  # (client, class) pairs in the training splits together, P
    samples: int  # training images of all clients together
    channels: int  # of images where no data is read (default 3)
    clusters: int  # cluster prototypes over all classes, Q (fpl)
    compressed_scalars: int  # scalars of one compressed model (fedkd)
    seed: int  # of the partition
    download: bool  # fetch the data set if it is missing


@dataclass(frozen=True)
class Traffic(Tabular):
    """Uploads and broadcasts of methods in a settled round, all clients together.

    Attributes:
        sizes: what was counted with: clients, classes, width, and so on.
        methods: one mapping a method: ``method``, and ``communication`` (``paper`` and ``full`` counts of scalars and
            bytes in both directions); or ``missing``: the size that is not known.
    """

    sizes: Mapping[str, Any]
    methods: tuple[Mapping[str, Any], ...]

    def table(self) -> Sequence[Mapping[str, Any]]:
        """Return the counts, one row a method and way of counting."""
        return [
            {"method": row["method"], "count": kind, **counts}
            for row in self.methods
            for kind, counts in row.get("communication", {}).items()
        ]


@verb(CostSettings)
def cost(methods: str | Sequence[str] = "fedre", **sizes: Unpack[CostSettings]) -> Traffic:
    """Count what methods upload and broadcast in a round, without training.

    Sizes are stated (``classes``, ``width``, ``pairs``, ...), or taken from data (``dataset``, ``partition``, ...). Without
    data, images are 3 x 32 x 32 unless ``channels`` and ``image_size`` say otherwise. ``clients`` are those that take part.

    >>> import fedpriv
    >>> found = fedpriv.cost("fedre", clients=10, classes=10, width=512)
    >>> found.methods[0]["communication"]["paper"]["upload_scalars_per_round"]
    5120

    Args:
        methods: names of ``fedpriv list methods``, several with commas between, or ``all``.
        sizes: see :class:`CostSettings`.
    """
    refuse_small(sizes, (*_STATED, "width", "clusters", "compressed_scalars"))
    listed = texts("methods", methods)
    names = [part for name in listed for part in (METHODS if name == "all" else name.split(","))]
    chosen = [METHODS.load(name) for name in names]
    option = mapping("option", sizes.get("option", ()))
    if option and len(names) > 1:
        raise UserError("option belongs to one method; ask for one methods with it")
    facts, where, blueprints = _sizes(sizes)
    rows: list[Mapping[str, Any]] = []
    for method in chosen:
        try:
            counts = communication(method, facts, option, blueprints)
            rows.append({"method": method.name, "communication": counts})
        except UserError as error:
            rows.append({"method": method.name, "missing": str(error)})
    if all("missing" in row for row in rows):
        reason = rows[0]["missing"]
        raise UserError(reason if len(rows) == 1 else f"no method can be counted; {names[0]}: {reason}")
    return Traffic(where, tuple(rows))


def _sizes(given: Mapping[str, Any]) -> tuple[FederationSizes, dict[str, Any], list[Blueprint]]:
    """Return the sizes, the same for people and machines, and the architectures that clients take in turn."""
    given = {name: value for name, value in given.items() if value is not None}
    where: dict[str, Any] = {}
    models: str | None = given.get("models")
    reads = [name for name in _DATA if name in given]
    if "classes" not in given or reads:
        stated = ", ".join(name for name in _STATED if name in given)
        if stated:
            why = f"{reads[0]} reads data" if reads else "classes is missing"
            raise UserError(f"{stated}: {why}, and data gives these sizes; drop {stated}")
        known = {name: value for name, value in given.items() if name in FLAG_NAMES and name != "option"}
        config = named_config("local", {**known, "models": models or "small"}, given.get("seed", 0))
        federated, image_shape = load_division(config, download=given.get("download", False))
        models, counts = config.models, class_counts(federated)
        sizes: dict[str, Any] = {
            "classes": federated.dataset.n_classes,
            "pairs": int((counts > 0).sum()),
            "samples": int(counts.sum()),
            "known_classes": int(counts.any(0).sum()),
        }
        where = {"dataset": config.dataset, "partition": config.partition.name, "seed": config.seed}
    else:
        checked = ("clients", "image_size", *(("width",) if models is not None else ()))
        config = named_config("local", {name: given[name] for name in checked if name in given}, 0)
        image_shape = (given.get("channels", 3), config.image_size or 32, config.image_size or 32)
        sizes = {name: given[name] for name in _STATED[:3] if name in given}
    if "width" in given and given.get("mapping") == "none":
        raise UserError(f"width={given['width']}: with mapping='none' models keep their own; drop width")
    if "width" not in given and models is None:
        raise UserError("the representation width is not known: pass width or models")
    facts = FederationSizes(
        clients=given.get("clients", 10),
        width=given["width"] if "width" in given else default_width(str(models), image_shape),
        clusters=given.get("clusters"),
        compressed_scalars=given.get("compressed_scalars"),
        public=given.get("public") or None,
        **sizes,
    )
    names = () if models is None else family(models)[: facts.clients]
    mapped = facts.width, given.get("mapping", "ap")
    blueprints = [blueprint_of(name, image_shape, facts.classes, *mapped) for name in names]
    if blueprints:
        facts = with_models(facts, blueprints)
    beside = {"model_scalars"} if len(set(names)) > 1 else {"all_model_scalars"}
    beside |= {"width"} if len({item.width for item in blueprints}) > 1 else set()
    where |= {k: v for k, v in vars(facts).items() if isinstance(v, int) and k not in beside}
    return facts, where, blueprints


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
    """Keyword arguments of an audit beside its canaries, and of the federation where no run says how that is made."""

    method: str | None  # a name of ``fedpriv list methods`` (default ``fedavg``)
    device: str  # ``auto`` (default), ``cpu``, ``cuda`` or ``cuda:N``
    download: bool  # fetch the data set if it is missing


@verb(PrivacyAuditSettings)
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
        run: folder of a run whose settings are taken (default: the settings given here). Or a :class:`fedpriv.Run`.
        canaries: how many; a bound of epsilon takes some 6 e^epsilon of them, of a Gaussian mechanism a few hundred.
        confidence: that no bound is above the truth, in (0.5, 1).
        claim: what is claimed, in place of what the defenses say, ``KEY=VALUE``: ``epsilon``, ``delta``, ``unit`` (client or
            image), ``of`` (upload or run), ``neighbours`` (replaced or absent), ``gaussian``; without epsilon a bound alone.
        seed: of coins, canaries and noise, and of the federation.
        settings: see :class:`PrivacyAuditSettings`, :class:`FederationSettings` and :class:`Circumstances`.
    """
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
    with folders.output(folder, "audit-dp", force=force):
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
