"""A federation ready to run: data divided, models chosen, plan checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.federated import federate, public_split, set_strangers_aside, validation_split
from fedpriv.datasets.types import FederatedData, Samples, as_unit
from fedpriv.federation.defense import Defense, DefensePipeline
from fedpriv.federation.footprint import refuse_images, refuse_networks
from fedpriv.federation.method import ClientSetup, GuardedTraining, Method, ServerSetup, State
from fedpriv.federation.plans import check_plan, protection_plan
from fedpriv.federation.run_directory import RunConfig, dataset_title
from fedpriv.federation.states import on_device
from fedpriv.federation.validation import refuse_useless
from fedpriv.models import default_width, family
from fedpriv.models.build import build_model
from fedpriv.models.shapes import ImageShape
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.config import parse
from fedpriv.util.errors import blaming
from fedpriv.util.registry import is_reference
from fedpriv.util.seeds import generator


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
        return on_device(self.server.device, self.method.init(setup, init_rng(self.config)))


def load_data(config: RunConfig, *, download: bool = False) -> tuple[FederatedData, Samples | None]:
    """Load a run's data set, set public (None for none), validation and strangers' images aside, and divide the rest."""
    data_dir = None if config.data_dir is None else Path(config.data_dir)
    seed = config.seed if config.division_seed is None else config.division_seed
    source = SourceOptions(data_dir, download, config.image_size, config.per_class, seed=seed)
    with blaming("dataset"):
        dataset = load_dataset(config.dataset, source)
    refuse_images(dataset)
    dataset = replace(dataset, name=dataset_title(config))
    public = None
    if config.public:
        dataset, public = public_split(dataset, config.public, seed)
    validation = None
    if config.validation:
        dataset, validation = validation_split(dataset, config.validation, seed)
    dataset, strangers = set_strangers_aside(dataset, config.strangers, seed)
    with blaming("partition"):
        divided = federate(dataset, config.partition, config.clients, seed)
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


def init_rng(config: RunConfig) -> torch.Generator:
    """Return the generator of the weights that everybody starts from."""
    return generator(config.seed, "initial-weights")


def _as_float(samples: Samples) -> Samples:
    return Samples(as_unit(samples.images), samples.labels)
