"""Free memory as the system tells it, and what is refused for want of it."""

import pytest
from looped import each

from fedpriv.util import compute
from fedpriv.util.compute import free_memory, require
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
