"""Defenses of other packages: equal to NVFlare's filter and Flower's mod where installed, and by hand everywhere."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import LABELS, C, build
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpriv.defenses.noise import LocalDp, standard_noise
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.uploads.payloads import Model, get_payload
from fedpriv.util.seeds import generator


def sent(text, update, before=None):
    """Return the update that arrives of one tensor, or of several by name, behind a defense."""
    update = update if isinstance(update, dict) else {"w": update}
    before = before or {name: torch.zeros_like(value) for name, value in update.items()}
    after = {name: before[name] + value for name, value in update.items()}
    pipeline = DefensePipeline(build(text))
    found = pipeline.upload((Model(after),), Sender(1, 0, C, LABELS, (Model(before),)), 0)
    return {name: value - before[name] for name, value in get_payload(found, Model).state.items()}


# ---------------------------------------------------------------- PercentilePrivacy


def test_percentile_by_hand():
    """Of magnitudes 1..5 the 50th percentile is 3; what is equal to it is sent."""
    update = {"w": torch.tensor([1.0, -2.0, 3.0, -4.0]), "b": torch.tensor([5.0])}
    found = sent("percentile-privacy:percentile=50,gamma=3.5", update)
    assert found["w"].tolist() == [0, 0, 3, -3.5]
    assert found["b"].tolist() == [3.5]


def filtered(update, percentile, gamma, steps):
    pytest.importorskip("nvflare", reason="NVFlare, whose filter this is held against, is not installed")
    from nvflare.apis.dxo import DXO, DataKind, MetaKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable
    from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

    data = DXO(DataKind.WEIGHT_DIFF, {name: value.numpy().copy() for name, value in update.items()})
    data.set_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND, steps)
    out = PercentilePrivacy(percentile, gamma).process_dxo(data, Shareable(), FLContext())
    return {name: torch.from_numpy(np.asarray(value)) for name, value in out.data.items()}


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
    wanted = filtered(update, percentile, gamma, steps)
    found = sent(f"percentile-privacy:percentile={percentile},gamma={gamma},steps={steps}", update)
    for name, value in wanted.items():
        expect_same(found[name], value.to(found[name]))


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
