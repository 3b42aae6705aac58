"""Images are represented once while weights stand, and answers are those of representing them anew, to the last bit."""

from dataclasses import replace

import torch
from federations import CPU, small

from fedpriv.federation import local_training
from fedpriv.sources.federation import prepare


def first_round(method, **options):
    """Every client's state after one round, and the broadcast that answers it."""
    federation = prepare(small(method, alpha=0.5, per_class=20, clients=3, models="small-cnn", options=options), CPU)
    server, broadcast = federation.method.start(federation.server, torch.Generator().manual_seed(0))
    states, uploads = [], []
    for setup in federation.clients:
        state = federation.initial_state(setup.client)
        state, upload = federation.method.client_step(setup, state, broadcast, federation.client_rng(1, setup.client))
        states.append(state)
        uploads.append((setup.client, upload))
    _, answer = federation.method.server_step(federation.server, server, uploads, torch.Generator().manual_seed(0))
    return federation, states, answer


def test_other_images_and_other_weights_are_represented_anew(monkeypatch):
    federation, (state, *_), _ = first_round("local")
    setup, images = replace(federation.clients[0], representation_cache={}), federation.tests[0].images
    done, represent = [], local_training.represent
    monkeypatch.setattr(local_training, "represent", lambda model, shown: done.append(1) or represent(model, shown))
    first = next(name for name in state if name.startswith("model.") and not name.startswith("model.head."))
    head = {"model.head.weight": state["model.head.weight"] + 1, "other": torch.zeros(1)}
    for state_, shown, passes in [
        (state, images, 1),
        (state | head, images, 1),
        (state | {first: state[first].clone()}, images, 2),  # equal, and another tensor
        (state | {first: state[first] + 1}, images, 3),
        (state | {first: state[first] + 1}, images.clone(), 4),
    ]:
        found = local_training.represent_by(setup, state_, shown)
        assert len(done) == passes
        assert torch.equal(found, local_training.represent_by(federation.clients[0], state_, shown))
        done.pop()
