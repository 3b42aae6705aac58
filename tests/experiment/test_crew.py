"""Workers change the time that a suite takes, and nothing else; whatever becomes of them, its results are all there."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedpriv
from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.cli.main import run as command
from fedpriv.experiment import crew, worker_number
from fedpriv.experiment.shares import Share, Shares, shares_of, workers_for
from fedpriv.pipeline.plan import AttackPlan, build_attacks
from fedpriv.util.errors import UserError
from fedpriv.util.listener import Listener

NAMES = ("pixels", "unmix-prior", "membership", "property")
OPTIONS = {
    "pixels": {"iterations": 3},
    "unmix-prior": {"iterations": 3},
    "property": {"shadow_clients": 2, "epochs": 2},
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
        self.lines, self.ended, self.open = [], [], []

    @contextlib.contextmanager
    def progress(self, title):
        self.open.append(title)
        yield lambda done, planned, what: None
        self.open.remove(title)
        self.ended.append(title)

    def say(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("crew") / "run"
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


def test_a_worker_that_is_killed_is_told_of_and_its_share_is_done(trained, alone, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "WORKER", "dying_worker")
    heard = Heard()
    fedpriv.attack(trained, workers=2, out=tmp_path / "two", listener=heard, **SUITE)
    (line,) = (line for line in heard.lines if "worker" in line)
    assert "its process ended: SIGKILL, perhaps for want of memory" in line
    assert_same(alone[0], tmp_path / "two")


def test_an_attack_that_fails_in_a_worker_fails_as_it_does_alone(trained, tmp_path, capsys):
    suite = ["--target", "entangled", "--attack", "crew_cases:Failing", "--attack", "pixels", "--iterations", "2"]
    out = ["--targets", "2", "--workers", "2", "--out", str(tmp_path / "r")]
    whole = ["attack", "--run", str(trained), *suite, *out]
    for more in ([], ["--resume"]):
        assert command([*whole, *more]) == 1
        last = capsys.readouterr().err.splitlines()[-1]
        assert last == "fedpriv: failed: ArithmeticError: no way (FEDPRIV_DEBUG=1 shows the traceback)"


@pytest.mark.slow
def test_an_interrupt_ends_the_workers_and_what_is_left_is_resumed(trained, alone, tmp_path):
    arguments = ["attack", "--run", str(trained), *ON_COMMAND_LINE, "--out", str(tmp_path / "two")]
    call = [sys.executable, "-m", "fedpriv", *arguments, "--workers", "2"]
    process = subprocess.Popen(
        call,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    workers = waited(lambda: children(process.pid))
    waited(lambda: list((tmp_path / "two").glob("*/")))
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert "interrupted; go on with: fedpriv attack" in said
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
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


# ---------------------------------------------------------------- shares


def plan(*names, **card):
    made = build_attacks(names, {})
    images = {name: one for name, one in made.items() if one.result == "images"}
    scores = {name: one for name, one in made.items() if one.result == "scores"}
    return AttackPlan("entangled", images, KnowledgeCard(**card), inferences=scores, device="cpu")


def test_shares_are_the_suite_and_name_what_they_train():
    names = (*NAMES, "unmix")
    whole = plan(*names, attacker_data="same_domain")
    shares = shares_of(whole)
    assert sorted(name for share in shares for name in share.plan.results()) == sorted(whole.results())
    networks = {str(share): share.network for share in shares}
    assert networks == dict.fromkeys(names, "") | dict.fromkeys(("unmix-prior", "unmix"), "decoder")
    assert not any(share.network for share in shares_of(plan("unmix-prior", "unmix", attacker_data="none")))


def test_attacks_that_need_a_shadow_extractor_are_one_share():
    shares = shares_of(plan(*NAMES, attacker_data="same_domain", extractor="shadow"))
    assert sorted(map(str, shares)) == ["pixels, unmix-prior, membership", "property"]


def test_who_trained_a_network_takes_what_needs_it_and_who_is_idle_takes_the_last():
    names = ["a", "b", "c", "d"]
    shares = {name: Share(plan("membership"), "net" if name in "abd" else "") for name in names}
    left = Shares(shares.values())
    one, other = set(), set()
    taken = [left.take(who) for who in (one, other, one, other)]
    assert [next(name for name in names if shares[name] is share) for share in taken] == ["a", "c", "b", "d"]
    assert left.take(one) is None
    left.give_back(shares["a"])
    assert left.take(set()) is not None


def test_a_search_and_its_control_are_handed_out_apart_and_then_put_together():
    whole = plan("dip", "pixels", "membership", "unmix-prior", attacker_data="same_domain")
    left, handed = Shares(shares_of(whole)), []
    while share := left.take(set()):
        handed.append((str(share), share.part))
        left.done(share)
    parts = ["reconstruction", "permuted", ""]
    # Searches that take few targets, because each is long, go first; what trains a network stays in one piece.
    assert handed == [
        *[("dip", part) for part in parts],
        *[("pixels", part) for part in parts],
        ("unmix-prior", ""),
        ("membership", ""),
    ]
    left = Shares(shares_of(plan("dip", "pixels")))
    one, other = left.take(set()), left.take(set())
    left.done(other)
    left.give_back(one)
    assert left.take(set()).part == "reconstruction"  # the control alone is not enough
    assert [share.divided() for share in shares_of(replace(whole, control=False))] == [
        [share] for share in shares_of(replace(whole, control=False))
    ]


def test_the_number_of_workers_is_that_of_shares_at_most(monkeypatch):
    whole = plan("dip", "pixels", "membership")
    assert [workers_for(asked, whole) for asked in (1, "2", 9)] == [1, 2, 5]  # two searches, a control each, one score
    assert 1 <= workers_for("auto", whole) <= min(5, os.cpu_count() or 1)
    for wrong in (0, "-1", "some"):
        with pytest.raises(UserError, match=f"workers={wrong!r}: expected auto or a whole number of at least 1"):
            workers_for(wrong, whole)


@pytest.mark.parametrize(
    ("cores", "free", "expected"), [(16, 80, 5), (2, 80, 2), (16, 12, 3), (16, 3, 1)], ids=lambda number: str(number)
)
def test_processes_share_a_card_as_its_memory_allows(cores, free, expected, monkeypatch):
    whole = plan("dip", "pixels", "membership")
    monkeypatch.setattr(worker_number, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(worker_number, "_cores", lambda: cores)
    monkeypatch.setattr(worker_number, "free_memory", lambda: 64 << 30)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda card: (free << 30, 80 << 30))
    assert workers_for("auto", whole) == expected


def test_short_work_starts_nobody(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(crew, "start", lambda *_: pytest.fail("a worker was started"))
    fast = {"target": "entangled", "attacks": ("pixels", "membership"), "iterations": 2, "targets": 2}
    assert set(fedpriv.attack(trained, out=tmp_path / "out", **fast).records) == {"pixels"}
