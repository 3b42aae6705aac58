"""A federation ready to run: data divided, models chosen, plan checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.partition import federate, public_split, set_auxiliary_aside
from fedpriv.datasets.types import Dataset, FederatedData, Samples, as_unit
from fedpriv.federation.defense import Defense, DefensePipeline, ProtectionPlan
from fedpriv.federation.local_training import has_batch_norm, steps
from fedpriv.federation.method import ClientSetup, GuardedTraining, Method, Plan, ServerSetup, check_architectures
from fedpriv.federation.run_directory import RunConfig, dataset_title
from fedpriv.federation.states import State, on_device
from fedpriv.models import ImageShape, default_width, family
from fedpriv.models.build import blueprint_of, build_model
from fedpriv.models.split import Blueprint, SplitModel
from fedpriv.util.compute import require
from fedpriv.util.config import parse
from fedpriv.util.errors import UserError, blaming, shown
from fedpriv.util.seeds import generator


@dataclass(frozen=True)
class Federation:
    """A federation ready to run; the ``attacker``'s own images are the public ones, else those that no client holds."""

    config: RunConfig  # of the run
    method: Method  # that trains it
    data: FederatedData  # the data set and its division
    clients: tuple[ClientSetup, ...]  # one setup per client
    server: ServerSetup  # the server's setup
    tests: tuple[Samples, ...] = field(repr=False)  # test samples per client, which no step sees
    attacker: Samples | None = field(default=None, repr=False)
    pipeline: DefensePipeline = field(default_factory=DefensePipeline)  # the defenses that clients apply

    @property
    def uploads(self) -> tuple[str, ...]:
        """Kinds of payload that leave the clients, after their defenses."""
        return self.pipeline.after(protection_plan(self.config, self.method, self.clients)).uploads

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
    """Load a run's data set, set public images and those of nobody aside, and divide the rest; return the public ones."""
    data_dir = None if config.data_dir is None else Path(config.data_dir)
    seed = config.seed if config.division_seed is None else config.division_seed
    source = SourceOptions(data_dir, download, config.image_size, config.per_class, seed=seed)
    with blaming("dataset"):
        dataset = load_dataset(config.dataset, source)
    _refuse_images(dataset)
    dataset = replace(dataset, name=dataset_title(config))
    public = None
    if config.public:
        dataset, public = public_split(dataset, config.public, seed)
    dataset, auxiliary = set_auxiliary_aside(dataset, config.auxiliary, seed)
    with blaming("partition"):
        divided = federate(dataset, config.partition, config.clients, seed)
    return replace(divided, auxiliary=auxiliary), public


def load_division(config: RunConfig, *, download: bool = False) -> tuple[FederatedData, ImageShape]:
    """Return a division with images of at most 8 pixels a side, and the shape that the images would have."""
    side = config.image_size
    small = config if side is None else replace(config, image_size=min(side, 8))
    data, _ = load_data(small, download=download)
    channels, height, width = data.dataset.image_shape
    return data, (channels, side or height, side or width)


def prepare(
    config: RunConfig, method: Method, device: torch.device, *, download: bool = False, defenses: Sequence[Defense] = ()
) -> Federation:
    """Load data, choose models and check the plan, with the method and defenses that the configuration names."""
    pipeline = DefensePipeline(tuple(defenses))
    options: Any = parse(method.options, config.options, f"options of {method.name}")
    data, public = load_data(config, download=download)
    with blaming("models"):
        names = family(config.models)
    width = config.width or default_width(config.models, data.dataset.image_shape)
    if config.width and config.mapping == "none":
        raise UserError(f"width={width}: with mapping='none' models keep their own; drop width, or pass mapping='ap'")
    blueprints = tuple(
        pipeline.blueprint(
            blueprint_of(names[k % len(names)], data.dataset.image_shape, data.dataset.n_classes, width, config.mapping)
        )
        for k in range(config.clients)
    )

    @cache
    def scratch(blueprint: Blueprint) -> SplitModel:
        # Convolutions are about a quarter faster on a CPU in this memory layout.
        return build_model(blueprint, 0).to(device).to(memory_format=torch.channels_last)

    shared = None if public is None or not method.needs_public else public.to(device)
    setups = tuple(
        ClientSetup(
            client=k,
            blueprint=blueprint,
            model=scratch(blueprint),
            train=Samples(as_unit(data.train(k).images), data.train(k).labels).to(device),
            training=config.training,
            options=options,
            scratch=scratch,
            public=None if shared is None else shared.images,
            public_labels=shared.labels if shared is not None and method.needs_public_labels else None,
        )
        for k, blueprint in enumerate(blueprints)
    )
    check_plan(method, setups, options, has_public=public is not None)
    plan = protection_plan(config, method, setups)
    pipeline.check(plan)
    guards = pipeline.guards(plan)
    if guards:
        training = GuardedTraining(**vars(config.training), guards=guards, poisson=pipeline.poisson())
        setups = tuple(replace(setup, training=training) for setup in setups)
    server = ServerSetup(
        n_clients=config.clients,
        blueprint=blueprints[0],
        options=options,
        scratch=scratch,
        device=device,
        public=None if public is None else public.images.to(device),
        rounds=config.rounds,
        blueprints=blueprints,
    )
    tests = tuple(data.test(k).to(device) for k in range(config.clients))
    current = public if public is not None or data.auxiliary is None else data.auxiliary.attacker
    attacker = None if current is None else current.to(device)
    return Federation(config, method, data, setups, server, tests, attacker, pipeline)


def init_rng(config: RunConfig) -> torch.Generator:
    """Return the generator of the weights that everybody starts from."""
    return generator(config.seed, "initial-weights")


def protection_plan(config: RunConfig, method: Method, setups: Sequence[ClientSetup]) -> ProtectionPlan:
    """Return a federation as defenses check it."""
    options, blueprints = setups[0].options, tuple(setup.blueprint for setup in setups)
    local_phases = method.local_phases(options, config.training)
    return ProtectionPlan(
        method=method.name,
        uploads=method.uploads,
        accepted_substitutes=method.accepted_substitutes,
        blueprints=blueprints,
        n_clients=config.clients,
        rounds=config.rounds,
        train_sizes=tuple(len(setup.train) for setup in setups),
        batch_size=config.training.batch_size,
        broadcasts=method.broadcasts,
        options=options,
        linear_aggregation=method.linear_aggregation,
        trained=tuple(dict.fromkeys((*(method.shared(current, options) for current in blueprints), *blueprints))),
        steps=tuple(sum(steps(len(setup.train), training) for training in local_phases) for setup in setups),
        non_sgd_computation=method.non_sgd_computation(options),
    )


def check_plan(method: Method, setups: Sequence[ClientSetup], options: Any, *, has_public: bool) -> None:
    """Check that a method can run on these clients."""
    check_architectures(method, [setup.blueprint for setup in setups])
    if method.needs_public and not has_public:
        raise UserError(f"method {method.name!r} needs public images; set some aside with public N")
    for setup in setups:
        if len(setup.train) < 2 and has_batch_norm(setup.model):
            raise UserError(
                f"client {setup.client} holds one training image, but {setup.blueprint.name} has batch normalisation, "
                "which needs two; use fewer clients, more data, another model or a larger least_per_client"
            )
    method.check(
        Plan(
            blueprints=tuple(setup.blueprint for setup in setups),
            options=options,
            train_sizes=tuple(len(setup.train) for setup in setups),
            training=setups[0].training,
        )
    )


def _refuse_images(dataset: Dataset) -> None:
    """Refuse images that memory cannot hold: each is copied when it is divided, and trained on as floats."""
    images = dataset.samples.images
    number, each = len(images), images[:1].numel() * (4 + images.element_size())

    def fits(free: int) -> str:
        fewer = free // max(1, each) // max(1, dataset.n_classes)
        also = f" or per_class={shown(fewer)}" * (fewer > 0)
        return f"smaller images (image_size){also} would fit"

    shape = " x ".join(map(str, images.shape[1:]))
    require(number * each, f"dividing data set {dataset.name!r}, {number:,} images of {shape},", fits, "image_size")
