"""Wrong use, one table: one line that says what would be right, exit code 2, and nothing made or changed."""

import errno
import re
import shutil
from pathlib import Path

import pytest
from command_line import call, refused
from federations import DIGITS

from fedpriv.cli.main import run

ENTANGLED, PROTOTYPE, OF_RUN = (
    f"attack --out r --target {rest}" for rest in ("entangled", "prototype", "prototype --attack pixels --run run")
)
WHOLE = "attack --out r --target representation --dataset digits --auxiliary 0"
DATA = "train --dataset digits --auxiliary 0 --out r"
COST, REPRODUCE, REPORT = "cost --width 4 --classes 10", "reproduce fedre-table-1 --out r", "report --out page"

CASES = [
    ("dance", "No such command"),
    # train
    ("train --method fedxyz", "unknown method 'fedxyz'"),
    ("train --dataset mnst", "unknown data set 'mnst'; did you mean 'mnist'"),
    ("train --dataset folder --data-dir missing", "missing"),
    ("train --alpha -1", "alpha"),
    ("train --rounds 0", "rounds: input should be greater than or equal to 1, got 0"),
    ("train --lr 0", "training.learning_rate: input should be greater than 0"),
    ("train --keep 99", "keep: input should be a round from 1 to 20, got 99"),
    ("train --defense noise:scale=1,scale=2", "defense 'noise:scale=1,scale=2': 'scale' is given twice"),
    ("train --defense dp-sgd:epsilon=inf", "defense dp-sgd: epsilon: input should be a finite number"),
    ("train --method fedavg", "needs one architecture for all clients"),
    ("train --resume", "resume needs out"),
    ("train --resume --out nowhere", "no such run directory"),
    # attack
    ("attack", "Missing option '--target'"),
    ("attack --target entangeld", "unknown target 'entangeld'; did you mean 'entangled'"),
    (f"{ENTANGLED} --attack dip2", "unknown attack 'dip2'"),
    (f"{ENTANGLED} --attack dlg", "attacks='dlg': attacks model"),
    (f"{ENTANGLED} --targets 0", "targets=0: expected at least 1"),
    (f"{ENTANGLED} --attack dip --knowledge extractor=none", "needs extractor="),
    (f"{ENTANGLED} --knowledge telepathy=yes", "unknown key 'telepathy'"),
    (f"{ENTANGLED} --run nowhere", "no such run directory"),
    (f"{ENTANGLED} --run x --alpha 1", "trained already; drop alpha"),
    (f"{ENTANGLED} --device cuda", "no CUDA device is usable here"),
    (f"{ENTANGLED} --method fedproto", "clients of 'fedproto' upload no 'entangled'; they upload: prototype"),
    (f"{PROTOTYPE} --method fedgh --dataset digits --defense entangle", "no 'prototype'; they upload: entangled"),
    (f"{OF_RUN} --round 9", "no uploads of round 9 are stored; stored rounds: 1, 2"),
    (f"{OF_RUN} --round 1", "white-box extractor of round 1 needs the checkpoint of round 1"),
    (f"{PROTOTYPE} --run run --attack all-rounds --rounds-seen 5", "rounds_seen=5, but only 2 round(s) up to round 2"),
    (f"{OF_RUN} --knowledge attacker_data=same_domain", "set no images aside"),
    (f"{ENTANGLED} --run run", "clients of 'fedgh' upload no 'entangled'; they upload: prototype"),
    (f"{WHOLE} --attack decoder", "attack 'decoder' needs attacker_data=same_domain"),
    (f"{WHOLE} --knowledge attacker_data=same_domain", "no images are set aside for the attacker; pass auxiliary 0.5"),
    (f"{WHOLE} --knowledge extractor=shadow", "attacker_data too"),
    # data
    (f"{DATA} --partition pathological --classes-per-client 4", "use assignment='random', which takes any number"),
    (f"{DATA} --partition iid --least-per-client 500", "has 179 samples, fewer than least_per_client=500"),
    # cost
    (f"{COST} --method fedgh", "pairs"),
    ("cost --method fedgg", "did you mean 'fedgh'"),
    ("cost --pairs 61", "classes is missing"),
    ("cost --dataset digits --pairs 61", "drop pairs"),
    (f"{COST} --method fedre,fedgh --option a=1", "one methods"),
    ("cost --classes 10 --model cnn4 --image-size 8", "cannot take images"),
    # score, report, reproduce
    ("score empty", "holds no attack result"),
    ("score x --redact hide", "hide"),
    ("report nowhere", "no such folder"),
    (f"{REPORT} empty", "empty: holds neither an attack result (about.json) nor a run (config.json)"),
    ("reproduce fedre-table-22 --out r", "unknown claim 'fedre-table-22'"),
    ("reproduce none.toml --out r", "a claim in TOML"),
    ("reproduce fedre-table-2 --scale big --out r", "unknown scale 'big'"),
]
"""A command, and what its one line holds."""


@pytest.fixture(scope="module")
def made(trained, tmp_path_factory):
    """A finished run, an attack on it, and a folder of nothing."""
    home = tmp_path_factory.mktemp("wrong")
    shutil.copytree(trained, home / "run")
    attack = ["attack", "--target", "prototype", "--attack", "pixels", "--iterations", "2", "--targets", "2"]
    assert run([*attack, "--run", f"{home}/run", "--out", f"{home}/result", "--quiet"]) == 0
    for name in ("empty", "x"):
        (home / name).mkdir()
    return home


def test_wrong_use_is_answered_in_one_line(made, monkeypatch, capsys):
    monkeypatch.chdir(made)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before, wrong = sorted(made.iterdir()), []
    for command, complaint in CASES:
        code, out, err = call(capsys, *command.split())
        right = (code, out, err.count("\n"), "Traceback" in err) == (2, "", 1, False)
        if not right or complaint not in " ".join(err.split()) or sorted(made.iterdir()) != before:
            wrong.append((command, complaint, code, out, err))
    assert wrong == []


def test_a_full_disk_is_named_with_the_way_on(tmp_path, monkeypatch, capsys):
    def full(path, content, write=Path.write_bytes):
        if path.name == "client-001.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        code, _, err = call(
            capsys,
            "train",
            "--method",
            "fedgh",
            *DIGITS,
            "--rounds",
            "2",
            "--models",
            "small-mlp",
            "--out",
            tmp_path / "run",
        )
    assert (code, err.count("\n")) == (1, 1)
    assert re.search(
        r"failed: \S+/client-001\.safetensors: No space left on device; go on with: fedpriv train --resume", err
    )


def test_a_study_that_is_no_file_or_no_settings_is_refused(capsys, tmp_path):
    (tmp_path / "deep.toml").write_text(f"seeds = {'[' * 500}{']' * 500}")
    (tmp_path / "bytes.toml").write_bytes(b"seeds = '\xff'")
    for name, complaint in (
        ("deep.toml", "not readable as TOML (more than 32"),
        ("bytes.toml", "not UTF-8"),
        (".", "is a folder"),
        ("/dev/zero", "is no regular file"),
        ("nowhere.toml", "no such file; expected a study in TOML"),
    ):
        assert complaint in refused(capsys, "audit", name, "--out", "study")
