"""Processes change the time that work takes, and nothing else: same bytes, whoever is killed, whenever it ends."""

import contextlib
import json
import os

import pytest
from federations import CPU, files, small, train_small
from parallel_cases import square
from safetensors.torch import load_file

import fedpriv
from fedpriv.sources.run import prepare
from fedpriv.study.training import opened
from fedpriv.util.compute import pick_device
from fedpriv.util.parallel import Listener, Pool, WorkerKilled
from fedpriv.util.registry import allowing

NAMES = ("pixels", "unmix", "membership", "property")
OPTIONS = {"pixels": {"iterations": 3}, "unmix": {"iterations": 3}, "property": {"shadow_clients": 2}}
SUITE = {"target": "entangled", "attacks": NAMES, "targets": 3, "attack_option": OPTIONS}


class Heard(Listener):
    """Keeps what it hears."""

    def __init__(self):
        self.lines, self.ended, self.open, self.moved = [], [], [], []

    @contextlib.contextmanager
    def progress(self, title):
        self.open.append(title)
        try:
            yield lambda *news: self.moved.append((title, *news))
            self.ended.append(title)
        finally:
            self.open.remove(title)

    def say(self, line):
        self.lines.append(line)


def test_a_pool_gives_results_in_order_and_tells_of_all():
    for workers, patience, joins in ((1, 0.0, False), (2, 0.0, False), (2, 1e6, False), (2, 0.0, True)):
        heard, news = Heard(), []
        with allowing(["mine"]), Pool(workers, patience, joins=joins, listener=heard, hear=news.append) as pool:
            found = list(pool.map(square, range(6), ahead=3))
        assert [number for number, _ in found] == [0, 1, 4, 9, 16, 25]
        assert ({pid for _, pid in found} == {os.getpid()}) == (workers == 1 or patience > 0)
        assert sorted(news) == list(range(6))
        assert sorted(heard.lines) == [f"{number} is done" for number in range(6)]
        assert heard.open == []


@pytest.mark.parametrize(("jobs", "alone"), [(6, 6), (10**12, 2)])
def test_the_second_job_shows_whether_all_are_worth_processes(jobs, alone):
    with Pool(2, 1e3, jobs=jobs) as pool:
        found = [pid for _, pid in pool.map(square, range(6))]
    assert [pid == os.getpid() for pid in found] == [True] * alone + [False] * (6 - alone)


def test_what_goes_wrong_in_a_job_is_raised_and_a_killed_process_is_one_line():
    for joins in (False, True):
        with Pool(2, joins=joins) as pool, pytest.raises(ArithmeticError, match="no way"):
            list(pool.map(square, [1, 17]))
    news = []
    with pytest.raises(WorkerKilled, match="a worker was killed: SIGKILL"), Pool(2, hear=news.append) as pool:
        list(pool.map(square, [13, 2]))
    assert "about to be killed" in news


def test_clients_of_several_processes_leave_the_same_files(tmp_path):
    config = small("fedre", alpha=0.5, per_class=12, clients=4, rounds=2, models="small-cnn,small-mlp", capture="all")
    pick_device("cpu")  # one thread, as in other processes
    train_small(tmp_path / "alone", config)
    with opened(prepare(config, CPU), 2) as clients:
        train_small(tmp_path / "together", config, clients)
    assert files(tmp_path / "together") == files(tmp_path / "alone")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("parallel") / "run"
    small = {"dataset": "digits", "per_class": 30, "clients": 3, "rounds": 2, "alpha": 1.0}
    fedpriv.train("fedre", out=path, **small)
    return path


@pytest.fixture(scope="module")
def alone(trained):
    heard, out = Heard(), trained.parent / "alone"
    fedpriv.attack(trained, workers=1, out=out, listener=heard, **SUITE)
    return out, heard


def timeless(value):
    """What a record says without times, and without digests of files that hold some."""
    if isinstance(value, dict):
        return {key: timeless(own) for key, own in value.items() if key not in ("seconds", "cost", "files", "command")}
    return [timeless(own) for own in value] if isinstance(value, list) else value


def content(folder):
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.suffix == ".json" and path.name != "request.json":
            found[name] = timeless(json.loads(path.read_text()))
        elif path.suffix == ".png":
            found[name] = path.read_bytes()
        elif path.suffix == ".safetensors":
            found[name] = {key: value.numpy().tobytes() for key, value in load_file(path).items()}
    return found


def assert_same(one, other):
    """Records, pictures and tensors of two suites are the same in every bit, times apart."""
    left, right = content(one), content(other)
    assert set(left) == set(right)
    assert len(left) >= 2 * 6 + 2
    assert [name for name in left if left[name] != right[name]] == []


def test_two_workers_find_what_one_finds_in_every_bit(trained, alone, tmp_path):
    heard = Heard()
    fedpriv.attack(trained, workers=2, out=tmp_path / "two", listener=heard, **SUITE)
    assert_same(alone[0], tmp_path / "two")
    assert heard.lines == alone[1].lines
    assert (heard.ended[-1], heard.open) == ("attacks", [])
