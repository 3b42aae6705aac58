"""Every registered method through one contract, then each aggregation and loss against a hand-computed case."""

import re
from dataclasses import replace

import torch
from compare import expect_same
from looped import each
from method_cases import CLASSES, SHAPE, SIZES, WIDTH, World, copies, expect_step, same, same_message
from torch.nn.functional import cross_entropy

from fedpriv.datasets.types import Samples
from fedpriv.federation.cost import message_sizes
from fedpriv.federation.local_training import local_batches
from fedpriv.federation.method import refuse_no_method
from fedpriv.federation.states import Trace, put
from fedpriv.methods import METHODS, default_method, references
from fedpriv.models.build import count_parameters
from fedpriv.uploads.ledger import FederationSizes, count, entries
from fedpriv.uploads.payloads import Model, Prototypes, get_payload
from fedpriv.util.seeds import generator

# A new method is one more row: options that the contract test runs it with.
ROWS: list[tuple[str, dict]] = [
    ("local", {}),
    ("fedavg", {}),
    ("fedallrep", {}),
    ("fedproto", {}),
    ("fedproto", {"averaging": "counts"}),
    ("fedgh", {}),
    ("fedtgp", {"server": {"epochs": 3}}),
    ("fpl", {}),
    *[("fedhenn", {"kernel": name, "rad_batch": size}) for name, size in (("linear", None), ("rbf", 4))],
    ("fedhenn-kernel", {}),
    ("fedhenn-homogeneous", {"schedule": "constant"}),
    ("fedhenn-homogeneous", {"distance": "procrustes", "rad_batch": 4}),
    *[("fedre", {"mechanism": name}) for name in ("RSR", "VAR", "RAR", "RSP", "VAP", "RAP")],
    ("fedre", {"sampling": "fixed", "distribution": "laplace"}),
    ("fedmrl", {}),
    ("fedmrl", {"small_width": 16, "small_model": "small-mlp"}),
    ("fedmrl", {"narrowing": "htfllib", "small_model": "small-cnn-deep", "inference": "single_small"}),
    ("fml", {}),
    ("fml", {"small_model": "small-cnn-deep"}),
    ("lg-fedavg", {}),
    ("fedprox", {}),
    ("fedrep", {"head_epochs": 2}),
    ("fedala", {}),
    ("fedala", {"layer_idx": 4}),
    ("fedavgdbe", {}),
    ("fedgen", {}),
    ("fedgen-homogeneous", {}),
    ("fedgen", {"noise": 5, "hidden": 7, "learning_rate": 0.005, "steps": 3, "batch_size": 4}),
    ("fd", {}),
    ("fedmd", {"public_epochs": 2, "public_batch": 3}),
    ("fedmd", {"public_epochs": 0, "samples": 5}),
    ("ds-fl", {"server": {"epochs": 1}}),
    ("ds-fl", {"aggregation": "sa", "samples": 5, "server": {"epochs": 1}}),
    ("fedral", {}),
    ("fedral", {"blocks": [1, 4, 16]}),
    ("fedral", {"blocks": [2], "aggregation": "naive"}),
    ("fedkd", {"energy_start": 0.01, "energy_end": 0.01}),
    ("fedapen", {"set_learning_rate": 0.5, "set_share": 0.4}),
]


def test_every_method_has_a_row_and_what_is_attacked_a_usual_method():
    assert {name for name, _ in ROWS} == set(METHODS)
    usual = {
        "representation": "fedallrep",
        "prototype": "fedgh",
        "entangled": "fedre",
        "model": "fedavg",
        "classifier": "lg-fedavg",
        "angle-matrix": "fedral",
        "extractor": "fedrep",
        "small-model": "fedmrl",
        "low-rank-model": "fedkd",
        "label-counts": "fedgen",
        "logits": "fd",
        "kernel": "fedhenn-kernel",
        "public-logits": "fedmd",
    }
    assert {kind: default_method(kind) for kind in usual} == usual
    assert default_method("energy") is None


@each("name", sorted(METHODS))
def test_every_method_keeps_the_contract_that_other_packages_are_held_to(name):
    refuse_no_method(name, METHODS.load(name))


@each("name", sorted(set(METHODS.builtins) - {"local"}))
def test_a_papers_entry_in_the_references_is_of_the_first_author_that_the_method_names(name):
    assert set(references()) == set(METHODS.builtins) - {"local"}
    entry, source = references()[name], METHODS.load(name).source
    family = re.search(r"([A-Z]\w+) (?:et al\.|and )", source)[1]
    assert re.search(rf"^  author *= \{{{family},", entry, re.M), source
    assert entry.count("{") == entry.count("}")


@each("name, options", ROWS)
def test_the_contract(name, options):
    world = World(name, options, batch_size=4)
    method = world.method
    assert method.name == name
    server, broadcast, states = world.start()
    for number in (1, 2):
        frozen = [copies(state) for state in states]
        frozen_server = copies(server)
        sent = tuple(type(payload)(**vars(payload)) for payload in broadcast)
        frozen_broadcast = [copies(payload.tensors()) for payload in broadcast]
        result = world.round(number, server, broadcast, states)
        # Pure: what went in is unchanged, and the same input gives the same output.
        assert all(same(state, before) for state, before in zip(states, frozen, strict=True))
        assert same(server, frozen_server)
        assert all(same(p.tensors(), before) for p, before in zip(sent, frozen_broadcast, strict=True))
        again = world.round(number, server, broadcast, states)
        assert same(result[0], again[0])
        assert same_message(result[1], again[1])
        assert all(same(one, other) for one, other in zip(result[2], again[2], strict=True))
        for (_, one), (_, other) in zip(result[3], again[3], strict=True):
            assert same_message(one, other)
        server, broadcast, states, uploads = result
        for k, upload in uploads:
            assert tuple(payload.kind for payload in upload) == method.uploads[: len(upload)]
            assert all(payload.non_finite() is None for payload in upload)
            total = count(entries(upload, number, k, "upload"))
            assert total["full"]["upload_scalars"] == sum(t.numel() for p in upload for t in p.tensors().values())
        assert {payload.kind for payload in broadcast} <= set(method.broadcasts)
    images = torch.rand(6, *SHAPE)
    for setup, state in zip(world.setups, states, strict=True):
        for seen in (state, method.apply_broadcast(setup, state, broadcast)):
            scores = method.predict(setup, seen, images)
            assert scores.shape == (6, CLASSES)
            assert not scores.isnan().any()
            expect_same(scores, method.predict(setup, seen, images))


@each("name", sorted(METHODS))
def test_clients_of_one_architecture_start_equal_and_a_round_with_one_client_works(name):
    world = World(name)
    server, broadcast, states = world.start()
    weights = [name for name in states[0] if name.startswith("model.")]
    for name in weights:
        expect_same(states[0][name], states[2][name])
    _, broadcast, after, _ = world.round(1, server, broadcast, states, chosen=(1,))
    assert same(after[0], states[0])
    received = world.method.apply_broadcast(world.setups[0], after[0], broadcast)
    assert world.method.predict(world.setups[0], received, torch.rand(2, *SHAPE)).shape == (2, CLASSES)


@each("name", sorted(METHODS))
def test_the_trace_holds_the_batches_that_training_was_handed_and_changes_nothing(name, monkeypatch):
    world = World(name, batch_size=4, epochs=2, max_steps=3)
    _, broadcast, states = world.start()
    handed, batch, train = [], Samples.batch, world.setups[0].train

    def noting(self, index):
        if self is train:
            handed.append(index.tolist())
        return batch(self, index)

    setup = replace(world.setups[0], trace=Trace())
    with monkeypatch.context() as noted:
        noted.setattr(Samples, "batch", noting)
        state, upload = world.method.client_step(setup, states[0], broadcast, generator(9))
    steps = [index.tolist() for index in setup.trace.steps]
    assert steps
    assert handed[-len(steps) :] == steps
    silent = replace(setup, trace=Deaf())
    again, sent = world.method.client_step(silent, states[0], broadcast, generator(9))
    assert same(again, state)
    assert same_message(sent, upload)


class Deaf(Trace):
    """A recorder that notes nothing."""

    def __setattr__(self, name, value):
        pass


def test_one_local_step_of_fedavg_reveals_the_gradient_of_its_first_batch():
    world = World("fedavg", batch_size=3, max_steps=1, learning_rate=0.1)
    server, broadcast, states = world.start()
    _, _, _, uploads = world.round(1, server, broadcast, states)
    for k, upload in uploads:
        setup = world.setups[k]
        index = local_batches(len(setup.train), setup.training, generator(0, "step", 1, k))[0]
        assert len(index) == 3
        put(setup.model, states[k], "model")
        images, labels = setup.train.batch(index)
        sent = {f"model.{name}": value for name, value in get_payload(upload, Model).state.items()}
        expect_step(setup.model, sent, cross_entropy(setup.model(images), labels), 0.1, atol=1e-6)


# ---------------------------------------------------------------- communication


def facts_of(world, broadcast):
    """Sizes of the world, as somebody would type them into ``fedpriv cost``."""
    known = {int(c) for setup in world.setups for c in setup.train.labels.unique()}
    return FederationSizes(
        clients=len(SIZES),
        classes=CLASSES,
        width=WIDTH,
        options=world.options,
        pairs=sum(len(setup.train.labels.unique()) for setup in world.setups),
        known_classes=len(known),
        samples=sum(SIZES),
        model_scalars=count_parameters(world.setups[0].model),
        all_model_scalars=sum(count_parameters(setup.model) for setup in world.setups),
        blueprint=world.setups[0].blueprint,
        clusters=sum(len(payload.features) for payload in broadcast if isinstance(payload, Prototypes)),
        public=None if world.server.public is None else len(world.server.public),
        compressed_scalars=sum(v.numel() for p in broadcast if p.kind == "low-rank-model" for v in p.factors.values()),
    )


@each("name, options", ROWS)
def test_the_ledger_of_a_settled_round_agrees_with_the_computed_communication(name, options):
    world = World(name, options, batch_size=4)
    server, broadcast, states = world.start()
    server, broadcast, states, _ = world.round(1, server, broadcast, states)
    _, _, _, uploads = world.round(2, server, broadcast, states)
    rows = [row for k in range(len(SIZES)) for row in entries(broadcast, 2, k, "broadcast")]
    rows += [row for k, upload in uploads for row in entries(upload, 2, k, "upload")]
    assert count(message_sizes(world.method, facts_of(world, broadcast))) == count(rows)
