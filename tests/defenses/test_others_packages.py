"""Defenses of other packages: equal to NVFlare's filter and Flower's mod where installed, and by hand everywhere."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import LABELS, C, build
from federations import CPU, small
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import ks_2samp

from fedpriv.defenses.noise import LocalDp, SvtPrivacy, standard_noise
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.federation.prepared import init_rng, protection_plan
from fedpriv.sources.run import prepare
from fedpriv.uploads.payloads import Model, get_payload
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator


def sent(text, update, before=None, seed=0):
    """Return the update that arrives of one tensor, or of several by name, behind a defense."""
    update = update if isinstance(update, dict) else {"w": update}
    before = before or {name: torch.zeros_like(value) for name, value in update.items()}
    after = {name: before[name] + value for name, value in update.items()}
    pipeline = DefensePipeline(build(text))
    found = pipeline.upload((Model(after),), Sender(1, 0, C, LABELS, (Model(before),)), seed)
    return {name: value - before[name] for name, value in get_payload(found, Model).state.items()}


# ---------------------------------------------------------------- PercentilePrivacy


def test_percentile_by_hand():
    """Of magnitudes 1..5 the 50th percentile is 3; what is equal to it is sent."""
    update = {"w": torch.tensor([1.0, -2.0, 3.0, -4.0]), "b": torch.tensor([5.0])}
    found = sent("percentile-privacy:percentile=50,gamma=3.5", update)
    assert found["w"].tolist() == [0, 0, 3, -3.5]
    assert found["b"].tolist() == [3.5]


def filtered(update, name, steps, **options):
    pytest.importorskip("nvflare", reason="NVFlare, whose filters these are held against, is not installed")
    from nvflare.apis.dxo import DXO, DataKind, MetaKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters import percentile_privacy, svt_privacy

    data = DXO(DataKind.WEIGHT_DIFF, {name: value.numpy().copy() for name, value in update.items()})
    data.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, steps)
    found = getattr(percentile_privacy, name, None) or getattr(svt_privacy, name)
    out = found(**options).process_dxo(data, Shareable(), FLContext())
    values = {name: torch.from_numpy(np.asarray(value)) for name, value in out.data.items()}
    return values, out.meta.get("svt_privacy_budget")


VALUES = st.floats(-0.0625, 0.0625, width=32) | st.sampled_from(
    [float(np.float32(value)) for value in (0, 0.01, -0.01, 0.02)]
)
ARRAYS = st.dictionaries(
    st.sampled_from("abc"), arrays(np.float32, st.sampled_from([(), (1,), (7,), (3, 4)]), elements=VALUES), min_size=1
)


@pytest.mark.frameworks
@settings(max_examples=150)
@given(ARRAYS, st.sampled_from([0, 10, 33.3, 50, 90, 100]), st.sampled_from([0.01, 0.005, 1.0]), st.integers(1, 5))
def test_updates_are_those_of_nvflares_filter_bit_for_bit(own, percentile, gamma, steps):
    update = {name: torch.from_numpy(np.array(value)) for name, value in own.items()}
    wanted, _ = filtered(update, "PercentilePrivacy", steps, percentile=percentile, gamma=gamma)
    found = sent(f"percentile-privacy:percentile={percentile},gamma={gamma},steps={steps}", update)
    for name, value in wanted.items():
        expect_same(found[name], value.to(found[name]))


# ---------------------------------------------------------------- SVTPrivacy

SVT = {  # noise so weak that nothing is left to chance; noise as strong as the update; as it comes, but for the clip
    "exact": {"fraction": 1.0, "epsilon": 1e9, "noise_var": 1e9, "gamma": 0.5, "tau": 0.0, "replace": False},
    "noisy": {"fraction": 0.2, "epsilon": 50.0, "noise_var": 5.0, "gamma": 0.5, "tau": 0.3, "replace": False},
    "stock": {"gamma": 0.5},
}


def drawn_again(options, draws=200, steps=2):
    """Return values that arrive of one update behind NVFlare's filter and behind ours, ``(draws, n)`` each, and a budget."""
    update = {"a": torch.randn(5, 7, generator=torch.Generator().manual_seed(3)), "b": torch.linspace(-1, 1, 5)}
    text = ",".join(f"{name}={value}" for name, value in options.items()) + f",steps={steps}"
    theirs, ours = [], []
    for number in range(draws):
        np.random.seed(number)  # noqa: NPY002  # the generator that NVFlare draws from
        wanted, budget = filtered(update, "SVTPrivacy", steps, **options)
        found = sent(f"svt-privacy:{text}", update, seed=number)
        theirs.append(torch.cat([wanted[name].flatten() for name in "ab"]))
        ours.append(torch.cat([found[name].flatten() for name in "ab"]))
    return torch.stack(theirs), torch.stack(ours), budget


@pytest.mark.frameworks
def test_updates_are_those_of_nvflares_sparse_vector_filter():
    theirs, ours, _ = drawn_again(SVT["exact"], draws=1)
    expect_close(ours, theirs, atol=1e-6)
    for name in ("noisy", "stock"):
        theirs, ours, budget = drawn_again(SVT[name])
        counts = [(values != 0).sum(1).double() for values in (theirs, ours)]
        assert abs(float(counts[0].mean() - counts[1].mean())) < 0.3, name
        shares = [(values != 0).double().mean(0) for values in (theirs, ours)]  # of draws in which an entry is sent
        assert float((shares[0] - shares[1]).abs().max()) < 0.16, name  # four standard errors
        assert ks_2samp(theirs[theirs != 0], ours[ours != 0]).pvalue > 0.01, name
        defense = SvtPrivacy(**SVT[name])
        assert defense.epsilon + defense.count(40) * defense.noise_var == pytest.approx(budget["epsilon_total"]), name


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "lg-fedavg", "fml"])
def test_what_the_sparse_vector_filter_spends_is_summed_over_rounds(method):
    models = {} if method == "fml" else {"models": "small-cnn"}
    federation = prepare(small(method, rounds=3, **models), CPU)
    _, broadcast = federation.method.start(federation.server, init_rng(federation.config))
    entries = sum(value.numel() for payload in broadcast for value in payload.tensors().values())
    plan = protection_plan(federation.config, federation.method, federation.clients)
    assert SvtPrivacy().privacy(plan)["epsilon"] == pytest.approx(3 * (0.1 + math.ceil(entries / 10) * 0.1))


def test_the_sparse_vector_filter_refuses_a_threshold_that_nothing_reaches():
    with pytest.raises(UserError, match="too few entries come near the threshold 9"):
        sent("svt-privacy:tau=9,epsilon=1e9", torch.ones(30))


# ---------------------------------------------------------------- LocalDpMod


def modified(before, after, clipping_norm, sensitivity, epsilon, delta, draws, monkeypatch):
    pytest.importorskip("flwr", reason="Flower, whose mod this is held against, is not installed")
    from flwr.app import Array, ArrayRecord, RecordDict
    from flwr.clientapp.mod import LocalDpMod

    def message(state):  # all that the mod asks of a message; a real one wants a task of a running federation
        arrays = ArrayRecord({name: Array(value.numpy().copy()) for name, value in state.items()})
        return SimpleNamespace(content=RecordDict({"arrays": arrays}), has_error=lambda: False)

    monkeypatch.setattr("numpy.random.normal", lambda mean, scale, shape: mean + scale * next(draws).reshape(shape))
    mod = LocalDpMod(clipping_norm, sensitivity, epsilon, delta)
    out = mod(message(before), None, lambda asked, context: message(after))
    found = next(iter(out.content.array_records.values()))
    return {name: torch.from_numpy(found[name].numpy()) for name in after}


@pytest.mark.frameworks
@pytest.mark.parametrize(
    "strength", [(1.0, 1.0, 1.0, 1e-5), (0.3, 2.0, 8.0, 1e-3), (100.0, 0.01, 0.5, 1e-6), (1.0, 0.0, 1.0, 1e-5)]
)
def test_updates_are_those_of_flowers_mod(strength, monkeypatch):
    rng = torch.Generator().manual_seed(3)
    before = {"w": torch.randn(5, 7, generator=rng), "b": torch.randn(5, generator=rng)}
    after = {name: value + torch.randn(value.shape, generator=rng) for name, value in before.items()}
    ours = generator(0, "defense", 0, 1, 0)
    drawn = {name: standard_noise(before[name], "gaussian", ours).double().numpy() for name in sorted(before)}
    draws = [drawn[name] for name in before]
    wanted = modified(before, after, *strength, iter(draws), monkeypatch)
    clip, sensitivity, epsilon, delta = strength
    defense = LocalDp(clip, sensitivity, epsilon, delta)
    upload = DefensePipeline((defense,)).upload((Model(after),), Sender(1, 0, C, LABELS, (Model(before),)), 0)
    for name, value in wanted.items():
        expect_close(get_payload(upload, Model).state[name], value, rtol=2e-6, atol=2e-6)
