"""Processes change the time that work takes, and nothing else: same bytes, whoever is killed, whenever it ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from federations import CPU, files, small, train_small
from parallel_cases import square
from safetensors.torch import load_file

import fedpriv
from fedpriv.attacks.observation import ThreatModel
from fedpriv.cli.main import run as command
from fedpriv.experiment.engines import opened
from fedpriv.experiment.shares import parts_of
from fedpriv.federation.engine import ClientJob
from fedpriv.federation.method import LocalTraining
from fedpriv.pipeline.plan import AttackPlan, build_attacks
from fedpriv.sources.federation import prepare
from fedpriv.util import parallel
from fedpriv.util.code import allowing
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Listener
from fedpriv.util.parallel import Pool, WorkerKilled, number_of_workers, patience_for

NAMES = ("pixels", "unmix", "membership", "property")
OPTIONS = {
    "pixels": {"iterations": 3},
    "unmix": {"iterations": 3},
    "property": {"shadow_clients": 2},
}
SUITE = {"target": "entangled", "attacks": NAMES, "targets": 3, "attack_option": OPTIONS}
ON_COMMAND_LINE = [
    *("--target", "entangled", "--targets", "3"),
    *(f"--attack={name}" for name in NAMES),
    *(f"--attack-option={name}.{key}={value}" for name, own in OPTIONS.items() for key, value in own.items()),
]


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


# ---------------------------------------------------------------- the pool


def test_a_pool_gives_results_in_order_and_tells_of_all():
    for workers, patience in ((1, 0.0), (2, 0.0), (2, 1e6)):
        heard, news = Heard(), []
        with allowing(["mine"]), Pool(workers, patience, listener=heard, hear=news.append) as pool:
            found = list(pool.map(square, range(6), ahead=3))
        assert [number for number, _ in found] == [0, 1, 4, 9, 16, 25]
        assert ({pid for _, pid in found} == {os.getpid()}) == (workers == 1 or patience > 0)
        assert sorted(news) == list(range(6))
        assert sorted(heard.lines) == [f"{number} is done" for number in range(6)]
        assert heard.open == []


def test_what_goes_wrong_in_a_job_is_raised_and_a_killed_process_is_one_line():
    with Pool(2) as pool, pytest.raises(ArithmeticError, match="no way"):
        list(pool.map(square, [1, 17]))
    news = []
    with pytest.raises(WorkerKilled, match="a worker was killed: SIGKILL"), Pool(2, hear=news.append) as pool:
        list(pool.map(square, [13, 2]))
    assert "about to be killed" in news


def test_the_number_of_workers(monkeypatch):
    assert [number_of_workers(asked, most=5) for asked in (1, "2", 9)] == [1, 2, 5]
    for wrong in (0, "-1", "some", True):
        with pytest.raises(UserError, match=f"workers={wrong!r}: expected auto or a whole number of at least 1"):
            number_of_workers(wrong)
    monkeypatch.setattr(parallel, "free_memory", lambda: 64 << 30)
    for cores, free, expected in ((16, 80, 8), (2, 80, 2), (16, 12, 3), (16, 3, 1)):
        monkeypatch.setattr(parallel, "pick_device", lambda name: torch.device("cuda"))
        monkeypatch.setattr(parallel, "_cores", lambda cores=cores: cores)
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda card, free=free: (free << 30, 80 << 30))
        assert number_of_workers("auto", "cuda") == expected
    assert (patience_for(2), patience_for("auto", 2)) == (0.0, parallel.PATIENCE / 2)


# ---------------------------------------------------------------- clients of a round


def test_clients_of_several_processes_leave_the_same_files(tmp_path):
    config = small(
        *("fedre",),
        alpha=0.5,
        per_class=12,
        clients=4,
        rounds=2,
        models="small-cnn,small-mlp",
        capture="all",
    )
    train_small(tmp_path / "alone", config)
    with opened(prepare(config, CPU), 2) as clients:
        train_small(tmp_path / "together", config, clients)
    assert files(tmp_path / "together") == files(tmp_path / "alone")


def test_training_that_diverges_ends_in_the_same_words():
    config = small("fedavg", models="small-mlp", per_class=10, clients=3, training=LocalTraining(learning_rate=1e30))
    federation = prepare(config, CPU)
    _, broadcast = federation.method.start(federation.server, torch.Generator().manual_seed(0))
    jobs = [ClientJob(1, k, federation.initial_state(k), broadcast) for k in range(3)]
    told = set()
    for workers in (1, 2):
        with opened(federation, workers) as clients, pytest.raises(UserError) as refused:
            list(clients(federation, jobs))
        told.add(str(refused.value))
    assert len(told) == 1


# ---------------------------------------------------------------- suites of attacks


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
    assert sorted(heard.ended) == sorted(alone[1].ended)
    assert heard.open == []


def test_an_attack_that_fails_in_a_worker_fails_as_it_does_alone(trained, tmp_path, capsys):
    suite = ["--target", "entangled", "--attack", "parallel_cases:Failing", "--attack", "pixels", "--iterations", "2"]
    out = ["--targets", "2", "--workers", "2", "--out", str(tmp_path / "r")]
    assert command(["attack", "--run", str(trained), *suite, *out]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "fedpriv: failed: ArithmeticError: no way (FEDPRIV_DEBUG=1 shows the traceback)"


@pytest.mark.slow
@pytest.mark.parametrize("ended", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupt_or_a_kill_ends_the_workers_and_what_is_left_is_resumed(ended, trained, alone, tmp_path):
    arguments = ["attack", "--run", str(trained), *ON_COMMAND_LINE, "--out", str(tmp_path / "two")]
    call = [sys.executable, "-m", "fedpriv", *arguments, "--workers", "2"]
    process = subprocess.Popen(
        call,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    waited(lambda: list((tmp_path / "two").glob("*/")))
    workers = children(process.pid)
    process.send_signal(ended)
    said = process.communicate(timeout=60)[1]
    if ended == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted; go on with: fedpriv attack" in said
    waited(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    assert command([*arguments, "--resume", "--quiet"]) == 0
    assert_same(alone[0], tmp_path / "two")


def children(pid):
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def waited(condition):
    for _ in range(1200):
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail("nothing happened in a minute")


def test_parts_are_the_suite_and_share_what_they_train():
    def plan(*names, **card):
        made = build_attacks(names, {})
        images = {name: one for name, one in made.items() if one.result == "images"}
        scores = {name: one for name, one in made.items() if one.result == "scores"}
        return AttackPlan("entangled", images, ThreatModel(**card), inferences=scores, device="cpu")

    whole = plan(*NAMES, attacker_data="same_domain")
    parts = [part.results() for part in parts_of(whole)]
    assert sorted(name for part in parts for name in part) == sorted(whole.results())
    assert len(parts) == 4
    shadowed = parts_of(plan(*NAMES, attacker_data="same_domain", extractor="shadow"))
    assert sorted(len(part.results()) for part in shadowed) == [1, 3]
