"""Canaries in a recorded Flower app: its own mods clip and noise them, and what it claims is held against what is told."""

import numpy as np
import pytest
from flower_cases import Array, ArrayRecord, ClientApp, LocalGrid, Message, MetricRecord, RecordDict
from flwr.app import ConfigRecord, Context
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fedpriv
from fedpriv.algebra.gaussian_mechanism import implied_epsilon
from fedpriv.integrations.canaries import FAR, canary, coin, direction

pytestmark = pytest.mark.frameworks

NODES = {100 + k: k for k in range(8)}
ROUNDS = 12
CLAIMED = {"clipping_norm": 1.0, "epsilon": 1.0, "delta": 1e-5}


def app(*mods):
    """A client that adds a little to every array, behind the given mods."""
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message, context):
        sent = {name: one.numpy() for name, one in message.content["arrays"].items()}
        arrays = {name: Array(one + np.asarray(0.001).astype(one.dtype)) for name, one in sent.items()}
        metrics = MetricRecord({"num-examples": 10})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    return made


def recorded(path, *mods, rounds=ROUNDS, whole=False):
    np.random.seed(1)  # Flower's noise  # noqa: NPY002
    server = ServerApp()

    def main(grid, context):
        arrays = {"w": Array(np.zeros((40, 30), np.float32)), "b": Array(np.zeros(30, np.float32))}
        initial = ArrayRecord({**arrays, "n": Array(np.arange(3))} if whole else arrays)
        config = ConfigRecord({"lr": 0.1})
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=8, min_available_nodes=8)
        strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, train_config=config)

    server.main()(fedpriv.flower.record(path)(main))
    server(LocalGrid(app(*mods), NODES), Context(1, 0, {}, RecordDict(), {}))
    return path


def facts(sensitivity, **others):
    options = ",".join(f"{name}={value}" for name, value in CLAIMED.items())
    return {"defense": [f"local-dp:{options},sensitivity={sensitivity}"], "method": "my-app", **others}


def test_a_canary_is_far_along_the_direction_or_its_opposite():
    sent = [np.zeros((4, 5), np.float32), np.ones(3, np.float32)]
    trained = [array + np.float32(2) for array in sent]
    rays = direction(7, sent)
    assert sum(float((ray**2).sum()) for ray in rays) == pytest.approx(1, abs=1e-6)
    moved = [new - old for new, old in zip(canary(7, "a", sent, trained), sent, strict=True)]
    side = sum(float((one * ray).sum()) for one, ray in zip(moved, rays, strict=True))
    assert side == pytest.approx((1 if coin(7, "a", sent) else -1) * FAR * np.sqrt(23 * 4), rel=1e-4)


def test_coins_are_fair_and_of_seed_client_and_round():
    rounds = [[np.full(3, number, np.float32)] for number in range(50)]
    tossed = np.array([[coin(7, str(client), sent) for client in range(40)] for sent in rounds])
    assert abs(tossed.mean() - 0.5) < 0.04
    assert len({tuple(row) for row in tossed}) == 50
    assert tossed[0, 0] == coin(7, "0", rounds[0])
    assert (tossed[0] != [coin(8, str(client), rounds[0]) for client in range(40)]).any()


def test_a_recorded_claim_that_clip_and_noise_do_not_keep_is_contradicted(tmp_path):
    mod = LocalDpMod(**CLAIMED, sensitivity=0.02)
    run = recorded(tmp_path / "run", mod, fedpriv.flower.canary(7))
    found = fedpriv.audit_dp(run, facts=facts(0.02, canaries=7), out=tmp_path / "audit").record
    assert found.verdict == "contradicted"
    assert (found.way, found.method, found.canaries) == ("recorded canaries", "my-app", 8 * ROUNDS)
    known = {one.name: one.epsilon for one in found.bounds}
    assert known["one run"] > 1  # no assumption but the coins
    assert known["size of the noise"] <= found.claim.implied


def test_a_recorded_claim_that_follows_is_not(tmp_path):
    mod = LocalDpMod(**CLAIMED, sensitivity=2.0)
    run = recorded(tmp_path / "run", mod, fedpriv.flower.canary(7))
    found = fedpriv.audit_dp(run, facts=facts(2.0, canaries=7)).record
    assert found.verdict == "not contradicted", found.sentence
    assert all(one.epsilon <= found.claim.implied for one in found.bounds)


@pytest.mark.parametrize(("added", "verdict"), [(2.0, "not contradicted"), (0.2, "contradicted")])
def test_without_canaries_the_noise_itself_is_measured(tmp_path, added, verdict):
    """The app says sensitivity 2 and adds noise for ``added``."""
    run = recorded(tmp_path / "run", LocalDpMod(**CLAIMED, sensitivity=added), rounds=2)
    found = fedpriv.audit_dp(run, facts=facts(2.0)).record
    assert (found.verdict, found.way) == (verdict, "recorded noise")
    (bound,) = found.bounds
    truth = implied_epsilon(1.0, added, 1.0, 1e-5).once
    assert 0.8 * truth < bound.epsilon <= truth


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no defense claims an epsilon here"),
        ({"claim": {"epsilon": 1}}, "no canaries: clients have to send them"),
        ({"claim": {"epsilon": 1, "of": "run"}, "facts": {"canaries": 1}}, "state a claim of one upload"),
        ({"facts": {"defense": ["secure-aggregation"]}, "claim": {"epsilon": 1}}, "sums alone"),
        ({"rounds": 3}, "recorded elsewhere, so nothing is trained; drop rounds"),
    ],
)
def test_what_a_recorded_run_cannot_tell_is_refused(tmp_path, given, told):
    run = recorded(tmp_path / "run", rounds=2)
    with pytest.raises(fedpriv.UserError, match=told):
        fedpriv.audit_dp(run, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
