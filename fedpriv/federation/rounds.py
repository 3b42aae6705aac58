"""The round: sample clients, broadcast, local work, upload, server step, evaluate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from fedpriv.datasets import load_dataset
from fedpriv.datasets.federated import federate, public_split, set_strangers_aside, validation_split
from fedpriv.datasets.sources.options import SourceOptions
from fedpriv.datasets.types import FederatedData, Samples, as_unit
from fedpriv.federation.accuracy import evaluate, round_line, summarise
from fedpriv.federation.capture import capture, is_captured
from fedpriv.federation.convergence import MeasuredStep, measure
from fedpriv.federation.defense import Defense, DefensePipeline, Sender, defense_facts
from fedpriv.federation.footprint import refuse_images, refuse_networks
from fedpriv.federation.gaps import refuse_gaps
from fedpriv.federation.method import ClientSetup, GuardedTraining, Method, ServerSetup, State
from fedpriv.federation.operations import client_operations
from fedpriv.federation.plans import check_plan, protection_plan
from fedpriv.federation.regions import save_regions
from fedpriv.federation.run_directory import Checkpoint, RunConfig, RunDirectory
from fedpriv.federation.summary import Counts, RunSummary
from fedpriv.federation.trace import Trace
from fedpriv.federation.unsampled import unsampled_facts
from fedpriv.federation.validation import refuse_useless, validate
from fedpriv.models import default_width, family
from fedpriv.models.build import build_model
from fedpriv.models.shapes import ImageShape
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.arguments import argument
from fedpriv.util.config import parse, plain
from fedpriv.util.errors import UserError, blaming
from fedpriv.util.registry import is_reference
from fedpriv.util.seeds import generator
from fedpriv.wire.ledger import Entry, entries
from fedpriv.wire.payloads import Message


@dataclass(frozen=True)
class ClientJob:
    """One client step to run."""

    client: int
    state: State
    broadcast: Message
    rng: torch.Generator


@dataclass(frozen=True)
class ClientResult:
    """A client step's state, upload and trace."""

    client: int
    state: State
    upload: Message
    trace: Trace


class Engine(Protocol):
    """Runs client steps. Results come in the order of the jobs."""

    def __call__(
        self, method: Method, setups: Sequence[ClientSetup], jobs: Sequence[ClientJob]
    ) -> Iterator[ClientResult]:
        """Run the jobs."""
        ...


class ModelCache:
    """Scratch modules, one per architecture, reused for every client that has it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._modules: dict[Blueprint, SplitModel] = {}

    def __call__(self, blueprint: Blueprint) -> SplitModel:
        """Return the module of an architecture; its weights are whatever was last loaded."""
        if blueprint not in self._modules:
            # Convolutions are about a quarter faster on a CPU in this memory layout.
            model = build_model(blueprint, 0).to(self.device).to(memory_format=torch.channels_last)
            self._modules[blueprint] = model
        return self._modules[blueprint]


@dataclass(frozen=True)
class Federation:
    """A federation ready to run: data divided, models chosen, plan checked.

    Attributes:
        config: what it was made from.
        method: the method.
        data: who holds what.
        clients: one setup per client.
        server: the server's setup.
        tests: test samples per client, which no step sees.
        attacker: labelled images of the clients' domain that whoever attacks owns, which no step sees: the public images
            where there are some, else those of strangers; None without either.
        pipeline: the defenses that clients apply.
    """

    config: RunConfig
    method: Method
    data: FederatedData
    clients: tuple[ClientSetup, ...]
    server: ServerSetup
    tests: tuple[Samples, ...] = field(repr=False)
    attacker: Samples | None = field(default=None, repr=False)
    pipeline: DefensePipeline = field(default_factory=DefensePipeline)

    @property
    def uploads(self) -> tuple[str, ...]:
        """Kinds of payload that leave the clients, after their defenses."""
        return self.pipeline.after(protection_plan(self.config, self.method, self.clients)).uploads

    @property
    def uploaded_rate(self) -> float:
        """The step size that moved the weights which clients upload."""
        return self.method.uploaded_rate(self.clients[0].options, self.config.training)

    def client_rng(self, round_: int, client: int) -> torch.Generator:
        """Return the generator of one client step: equal for equal (seed, round, client)."""
        return generator(self.config.seed, "client-step", round_, client)

    def participants(self, round_: int) -> tuple[int, ...]:
        """Return the clients of a round, ascending: at least one."""
        number = max(1, round(self.config.participation * self.config.clients))
        order = torch.randperm(self.config.clients, generator=generator(self.config.seed, "participants", round_))
        return tuple(sorted(order[:number].tolist()))

    def unsampled(self, rounds: int) -> tuple[int, ...]:
        """Return the clients that none of the first so many rounds samples, ascending."""
        sampled = {k for round_ in range(1, rounds + 1) for k in self.participants(round_)}
        return tuple(k for k in range(self.config.clients) if k not in sampled)

    def initial_state(self, client: int) -> State:
        """Return a client's state before the first round. Clients of one architecture start with equal weights."""
        setup = self.clients[client]
        return _on(self.server.device, self.method.init(setup, _init_rng(self.config)))


def load_data(config: RunConfig, *, download: bool = False) -> tuple[FederatedData, Samples | None]:
    """Load a run's data set, set public (None for none), validation and strangers' images aside, and divide the rest."""
    data_dir = None if config.data_dir is None else Path(config.data_dir)
    source = SourceOptions(data_dir, download, config.image_size, config.per_class, seed=config.seed)
    with blaming("dataset"):
        dataset = load_dataset(config.dataset, source)
    refuse_images(dataset)
    public = None
    if config.public:
        dataset, public = public_split(dataset, config.public, config.seed)
    validation = None
    if config.validation:
        dataset, validation = validation_split(dataset, config.validation, config.seed)
    dataset, strangers = set_strangers_aside(dataset, config.strangers, config.seed)
    with blaming("partition"):
        divided = federate(dataset, config.partition, config.clients, config.seed)
    return replace(divided, strangers=strangers, validation=validation), public


def load_division(config: RunConfig, *, download: bool = False) -> tuple[FederatedData, ImageShape]:
    """Return who would hold what, and the shape of the images; they are small ones, since nobody looks at them."""
    side = config.image_size
    small = config if side is None else replace(config, image_size=min(side, 8))
    data, _ = load_data(small, download=download)
    channels, height, width = data.dataset.image_shape
    return data, (channels, side or height, side or width)


def prepare(
    config: RunConfig,
    method: Method,
    device: torch.device,
    *,
    download: bool = False,
    defenses: Sequence[Defense] = (),
) -> Federation:
    """Load data, choose models and check the plan.

    Args:
        config: what to run.
        method: what ``config.method`` names.
        device: where to compute.
        download: fetch the data set where it is missing.
        defenses: what ``config.defenses`` names, built, in the same order (:func:`fedpriv.defenses.build_defenses`).
    """
    wanted = [config.method, *(one.name for one in config.defenses)]
    given = [method.name, *(one.name for one in defenses)]
    if len(wanted) != len(given) or any(
        name != own and not is_reference(name) for name, own in zip(wanted, given, strict=True)
    ):
        raise ValueError("prepare: the method and the defenses are not those that the configuration names")
    pipeline = DefensePipeline(tuple(defenses))
    options: Any = parse(method.options, config.options, f"options of {method.name}")
    data, public = load_data(config, download=download)
    with blaming("models"):
        names = family(config.models)
    width = config.width or default_width(config.models, data.dataset.image_shape)
    blueprints = tuple(
        pipeline.blueprint(
            Blueprint(names[k % len(names)], data.dataset.image_shape, data.dataset.n_classes, width, config.mapping)
        )
        for k in range(config.clients)
    )
    refuse_networks(blueprints, device)
    cache = ModelCache(device)
    shared = None if public is None or not method.needs_public else public.to(device)
    setups = tuple(
        ClientSetup(
            client=k,
            blueprint=blueprint,
            model=cache(blueprint),
            train=_as_float(data.train(k)).to(device),
            training=config.training,
            options=options,
            scratch=cache,
            public=None if shared is None else shared.images,
            public_labels=shared.labels if shared is not None and method.needs_public_labels else None,
        )
        for k, blueprint in enumerate(blueprints)
    )
    if data.validation is not None:
        refuse_useless(data.validation, setups)
        data = replace(data, validation=data.validation.to(device))
    check_plan(method, setups, options, has_public=public is not None)
    plan = protection_plan(config, method, setups)
    pipeline.check(plan)
    guards = pipeline.guards(plan)
    if guards:
        plain_training = {spec.name: getattr(config.training, spec.name) for spec in fields(config.training)}
        training = GuardedTraining(**plain_training, guards=guards, poisson=pipeline.poisson())
        setups = tuple(replace(setup, training=training) for setup in setups)
    server = ServerSetup(
        n_clients=config.clients,
        blueprint=blueprints[0],
        options=options,
        scratch=cache,
        device=device,
        public=None if public is None else public.images.to(device),
        rounds=config.rounds,
        blueprints=blueprints,
    )
    tests = tuple(data.test(k).to(device) for k in range(config.clients))
    own = public if public is not None or data.strangers is None else data.strangers.attacker
    attacker = None if own is None else own.to(device)
    return Federation(config, method, data, setups, server, tests, attacker, pipeline)


Report = Callable[[int, int, str], None]
"""Called with (client steps done, client steps planned, what was just finished)."""


def run(federation: Federation, directory: RunDirectory, engine: Engine, report: Report | None = None) -> RunSummary:
    """Run a federation from wherever its directory stands to the end; return the summary, which is also written there."""
    config, method = federation.config, federation.method
    done, server, states, broadcast, evaluation = _standing(federation, directory)
    steps_per_round = len(federation.participants(1))
    tested = list(zip(federation.clients, federation.tests, strict=True))
    absent = federation.unsampled(done)
    for round_ in range(done + 1, config.rounds + 1):
        began = time.perf_counter()
        chosen = federation.participants(round_)
        absent = tuple(k for k in absent if k not in chosen)
        starts = {k: states[k] for k in chosen}
        jobs = [ClientJob(k, states[k], broadcast, federation.client_rng(round_, k)) for k in chosen]
        uploads: list[tuple[int, Message]] = []
        traces: dict[int, Trace] = {}
        for number, result in enumerate(engine(method, federation.clients, jobs), start=1):
            _refuse_non_finite(result, round_)
            states[result.client], traces[result.client] = result.state, result.trace
            sent = _protected(federation, result, broadcast, round_)
            if sent:
                uploads.append((result.client, sent))
            if report is not None:
                finished = (round_ - 1) * steps_per_round + number
                report(finished, config.rounds * steps_per_round, f"round {round_}, client {result.client}")
        wire = _wire(federation, round_, broadcast, uploads)
        if is_captured(config, round_, uploads):
            capture(directory, round_, broadcast, uploads, traces)
        rng = generator(config.seed, "server-step", round_)
        trained, before = time.perf_counter(), server
        if uploads or not federation.pipeline.defenses:
            server, next_broadcast = method.server_step(federation.server, server, uploads, rng)
        else:  # nobody sent anything: the server has nothing to learn from, and says what it said before
            next_broadcast = broadcast
        served = time.perf_counter()
        adapted = absent if config.unsampled == "own_statistics" else ()
        moments = federation.server, before, server
        evaluation = evaluate(method, tested, states, next_broadcast, evaluation, set(chosen), moments, adapted)
        left_out = absent if config.unsampled == "left_out" else ()
        checked = validate(method, federation.clients, federation.data.validation, states, next_broadcast)
        line = round_line(round_, chosen, evaluation, wire, left_out=left_out, validation=checked)
        directory.append("metrics", [line.model_dump(mode="json")])
        if config.convergence and round_ % config.convergence == 0:
            measured = [MeasuredStep(federation.clients[k], starts[k], states[k]) for k in chosen]
            found = measure(method, measured, broadcast, next_broadcast, seed=config.seed, round_=round_)
            directory.append("convergence", [found.model_dump(mode="json")])
        directory.append("ledger", [plain(row) for row in wire])
        seconds = {"clients": trained - began, "server": served - trained, "evaluate": time.perf_counter() - served}
        directory.append("timings", [{"round": round_, "seconds": seconds}])
        broadcast = next_broadcast
        if round_ % config.checkpoint_every == 0 or round_ == config.rounds or round_ in config.keep:
            checkpoint = Checkpoint(round_, server, tuple(states), broadcast, evaluation)
            # With a checkpoint every round only this round's clients have changed since the last one.
            changed = set(chosen) if config.checkpoint_every == 1 else set(range(config.clients))
            directory.save_checkpoint(checkpoint, changed, config.keep)
    save_regions(directory, federation.data, method, federation.clients, states, broadcast)
    summary = _summary(federation, directory)
    directory.finish(summary)
    return summary


def _wire(
    federation: Federation, round_: int, broadcast: Message, uploads: Sequence[tuple[int, Message]]
) -> list[Entry]:
    """Return the ledger's entries of a round: the broadcast to each of its clients, and what these sent."""
    sent = [row for k in federation.participants(round_) for row in entries(broadcast, round_, k, "broadcast")]
    wire_entries = federation.pipeline.wire_entries
    return sent + [row for k, upload in uploads for row in wire_entries(entries(upload, round_, k, "upload"))]


def _summary(federation: Federation, directory: RunDirectory) -> RunSummary:
    config, method = federation.config, federation.method
    defenses = tuple(defense_facts(defense) for defense in federation.pipeline.defenses)
    privacy = federation.pipeline.privacy(protection_plan(config, method, federation.clients))
    work = client_operations(method, federation.clients, federation.server)
    absent = unsampled_facts(federation.unsampled(config.rounds), federation.clients, config.unsampled)
    return summarise(directory, config, work, unsampled=absent, defenses=defenses, privacy=privacy)


def _standing(federation: Federation, directory: RunDirectory) -> tuple[int, State, list[State], Message, Counts]:
    config, device = federation.config, federation.server.device
    newest = directory.newest_checkpoint()
    directory.cut_lines(newest or 0)
    refuse_gaps(directory, newest or 0)
    if newest is None:
        server, broadcast = federation.method.start(federation.server, _init_rng(config))
        return 0, server, [federation.initial_state(k) for k in range(config.clients)], broadcast, {}
    found = directory.load_checkpoint(newest)
    directory.drop_checkpoints(config.keep)  # where a crash came first
    states = [_on(device, state) for state in found.clients]
    broadcast = tuple(_payload_on(device, payload) for payload in found.broadcast)
    return newest, _on(device, found.server), states, broadcast, found.evaluation


def _init_rng(config: RunConfig) -> torch.Generator:
    return generator(config.seed, "initial-weights")


def _on(device: torch.device, state: State) -> State:
    return {name: value.to(device) for name, value in state.items()}


def _payload_on(device: torch.device, payload: Any) -> Any:
    def move(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: entry.to(device) for name, entry in value.items()}
        return value if value is None else value.to(device)

    return type(payload)(**{spec.name: move(getattr(payload, spec.name)) for spec in fields(payload)})


def _as_float(samples: Samples) -> Samples:
    return Samples(as_unit(samples.images), samples.labels)


def _refuse_non_finite(result: ClientResult, round_: int) -> None:
    found = [f"{payload.kind}.{name}" for payload in result.upload if (name := payload.non_finite()) is not None]
    if not result.upload:  # then nothing but the state shows it
        found = [name for name, value in result.state.items() if not bool(torch.isfinite(value).all())]
    if found:
        raise UserError(
            f"round {round_}, client {result.client}: {found[0]} became NaN or infinite; "
            f"training diverged, try a smaller {argument('lr')}"
        )


def _protected(federation: Federation, result: ClientResult, broadcast: Message, round_: int) -> Message:
    """Return the message that leaves a client after its defenses; empty where nothing does."""
    setup = federation.clients[result.client]
    sender = Sender(
        round=round_,
        client=result.client,
        n_classes=setup.n_classes,
        labels=setup.train.labels.cpu(),
        broadcast=broadcast,
        rounds=federation.config.rounds,
        trace=result.trace,
    )
    return federation.pipeline.upload(result.upload, sender, federation.config.seed)
