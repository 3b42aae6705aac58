"""Wrong use: one line that says what would be right, exit code 2, and nothing overwritten."""

import pytest
from command_line import call


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["attack", "--target", "entangeld"], "unknown target 'entangeld'; did you mean 'entangled'"),
        (["attack", "--target", "entangled", "--attack", "dip2"], "unknown attack 'dip2'"),
        (["attack", "--target", "entangled", "--attack", "dlg"], "--attack dlg: attacks model"),
        (["attack", "--target", "entangled", "--targets", "0"], "--targets 0: expected at least 1"),
        (["attack", "--target", "entangled", "--iterations", "0"], "iterations"),
        (["attack", "--target", "entangled", "--attack-option", "speed=3"], "unknown key 'speed'"),
        (["attack", "--target", "entangled", "--attack", "dip", "--knowledge", "extractor=none"], "needs extractor="),
        (["attack", "--target", "entangled", "--knowledge", "extractor"], "expected KEY=VALUE"),
        (["attack", "--target", "entangled", "--knowledge", "telepathy=yes"], "unknown key 'telepathy'"),
        (["attack", "--target", "entangled", "--run", "nowhere"], "no such run directory"),
        (["attack", "--target", "entangled", "--run", "x", "--alpha", "1"], "trained already; drop --alpha"),
        (["attack", "--target", "entangled", "--device", "cuda"], "no CUDA device is usable here"),
        (["attack", "--target", "entangled", "--device", "tpu9"], "unknown device"),
        (["attack"], "Missing option '--target'"),
        (["train", "--method", "fedxyz"], "unknown method 'fedxyz'"),
        (["train", "--dataset", "mnst"], "unknown data set 'mnst'; did you mean 'mnist'"),
        (["train", "--dataset", "folder"], "needs --data-dir"),
        (["train", "--dataset", "folder", "--data-dir", "missing"], "missing"),
        (["train", "--alpha", "0"], "alpha"),
        (["train", "--alpha", "-1"], "alpha"),
        (["train", "--partition", "round-robin"], "round-robin"),
        (["train", "--clients", "5000"], "5000"),
        (["train", "--rounds", "0"], "rounds: input should be greater than or equal to 1, got 0"),
        (["train", "--participation", "1.5"], "participation"),
        (["train", "--lr", "0"], "training.learning_rate: input should be greater than 0"),
        (["train", "--width", "100000000000000000000"], "width: input should be less than or equal to 65536"),
        (["train", "--image-size", "100000"], "image_size: input should be less than or equal to 4096"),
        (["train", "--mapping", "xx"], "mapping"),
        (["train", "--keep", "99"], "keep: input should be a round from 1 to 20, got 99"),
        (["train", "--keep", "0"], "keep: input should be a round from 1 to 20, got 0"),
        (["train", "--defense", "noise:scale=1,scale=2"], "defense 'noise:scale=1,scale=2': 'scale' is given twice"),
        (["train", "--defense", "dp-sgd:epsilon=inf"], "defense dp-sgd: epsilon: input should be a finite number"),
        (["train", "--option", "mechanism=XX"], "mechanism"),
        (["train", "--method", "fedavg"], "needs one architecture for all clients"),
        (["train", "--resume"], "--resume needs --out"),
        (["train", "--resume", "--out", "nowhere"], "no such run directory"),
        (["train", "--config", "nowhere.toml"], "no such file"),
        (["train", "--speed", "3"], "No such option"),
        (["report", "nowhere"], "no such folder"),
        (["score", "."], "holds no attack result"),
        (["list", "metods"], "unknown list 'metods'; did you mean 'methods'"),
        (["dance"], "No such command"),
    ],
)  # fmt: skip
def test_wrong_use_is_answered_in_one_line(arguments, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_file_with_an_unknown_key_is_refused(capsys, tmp_path):
    (tmp_path / "run.toml").write_text("round = 3\n")
    code, _, err = call(capsys, "train", "--config", "run.toml")
    assert code == 2
    assert "'round'; did you mean 'rounds'" in err


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("clients = [1]", "run.toml: clients: expected one value, got a list"),
        ("momentum = {a = 1}", "run.toml: momentum: expected one value, got a table"),
        ("keep = [[1]]", "run.toml: keep: expected one value, got a list"),
        ("data-dir = 0", "run.toml: data-dir: expected a text, got 0"),
        ("public = inf", "run.toml: public: 'inf' is not a valid integer"),
        ("device = [1.5]", "run.toml: device: expected one value, got a list"),
        ("device = 1.5", "device 1.5: unknown device"),
        ("clients = true", "run.toml: clients: 'True' is not a valid integer"),
        ("drop-last = 1", "run.toml: drop-last: expected true or false, got 1"),
        ("lr = 'x'", "run.toml: lr: 'x' is not a valid float"),
        ("option = {mechanism = [[1]]}", "mechanism"),
        ("out = 2026-01-01", "run.toml: not readable as TOML ('out': a date"),
        (f"alpha = {'[' * 500}{']' * 500}", "run.toml: not readable as TOML (more than 32 lists"),
        (f"dataset = '{'x' * 10_000}'", "characters)..."),
        ('dataset = "\\u001b[31m"', "'\\x1b[31m'"),
    ],
    ids=lambda text: text[:30],
)
def test_a_configuration_file_with_another_type_is_refused(line, complaint, capsys, tmp_path):
    (tmp_path / "run.toml").write_text(line)
    code, out, err = call(capsys, "train", "--config", "run.toml")
    assert (code, out) == (2, "")
    assert complaint in err
    assert (len(err.splitlines()), len(err) < 1500) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


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
        code, out, err = call(capsys, "audit", name, "--out", "study")
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert complaint in err
