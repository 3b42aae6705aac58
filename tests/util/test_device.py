"""A device is one that is there, and repeats itself."""

import os
import warnings

import pytest
import torch
from looped import each

from fedpriv.util.compute import pick_device
from fedpriv.util.errors import UserError


@pytest.fixture
def one_card(monkeypatch):
    """Make torch say that there is a GPU, and put back afterwards what choosing it sets for the whole process."""
    kept = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filling, tf32 = torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.allow_tf32
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.backends.cudnn.allow_tf32 = True
    with warnings.catch_warnings():
        yield
    torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])
    torch.utils.deterministic.fill_uninitialized_memory, torch.backends.cudnn.allow_tf32 = filling, tf32
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.usefixtures("one_card")
@each("name", ["auto", "cuda", "cuda:0"])
def test_a_gpu_is_told_to_repeat_itself_in_full_precision(name):
    assert pick_device(name).type == "cuda"
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.backends.cudnn.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.usefixtures("one_card")
@each(
    "name, said",
    [
        ("cuda:1", "this machine has 1 CUDA device"),
        ("tpu", "unknown device"),
        ("meta", "unknown device"),
        (3, "unknown device"),
    ],
)
def test_what_is_no_device_is_refused(name, said):
    with pytest.raises(UserError, match=said):
        pick_device(name)
