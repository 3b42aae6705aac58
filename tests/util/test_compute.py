"""Free memory, what is refused for want of it, and devices."""

import os
import warnings

import pytest
import torch
from looped import each

from fedpriv.util import compute
from fedpriv.util.compute import free_memory, pick_device, require
from fedpriv.util.errors import UserError

GIB = 1 << 30


def system(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


MACHINE = {"proc/meminfo": f"MemTotal: {9 * GIB // 1024} kB\nMemAvailable: {8 * GIB // 1024} kB\n"}


def test_a_machine_without_limits_leaves_what_it_has_available(tmp_path):
    assert free_memory(system(tmp_path, MACHINE)) == 8 * GIB


@each("place", ["sys/fs/cgroup/work/deep", "sys/fs/cgroup/work", "sys/fs/cgroup"])
def test_the_tightest_control_group_around_the_process_counts(tmp_path, place):
    group = {
        "proc/self/cgroup": "0::/work/deep\n",
        "sys/fs/cgroup/work/deep/memory.max": "max\n",
        f"{place}/memory.max": f"{4 * GIB}\n",
        f"{place}/memory.current": f"{3 * GIB}\n",
        f"{place}/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    assert free_memory(system(tmp_path, MACHINE | group)) == 2 * GIB


def test_a_refusal_names_both_sizes_and_what_would_fit(monkeypatch):
    monkeypatch.setattr(compute, "free_memory", lambda: 3 * GIB)
    require(3 * GIB, "it", lambda free: "")
    with pytest.raises(UserError) as refused:
        require(3 * GIB + 1, "it", lambda free: f"{free // GIB} would fit", "size")
    assert str(refused.value) == "it would take 3 GiB of memory, and 3 GiB are free; 3 would fit"
    assert refused.value.keys == ("size",)


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
