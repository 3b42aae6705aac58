"""Another package trains, attacks, defends and reports through the command line; nothing of this one is touched."""

import json
import os
import subprocess
import sys
from pathlib import Path

from outside_cases import OUTSIDE

ROOT = Path(__file__).parents[2]
SMALL = ["--width", "8", "--clients", "3", "--rounds", "2", "--quiet"]


ONE_AFTER_THE_OTHER = """
import json, sys
from fedpriv.cli.main import run
for command in json.loads(sys.argv[1]):
    code = run(command)
    print(code, end="\\f", flush=True)
    print(end="\\f", file=sys.stderr, flush=True)
"""


def run(folder, *commands, path=OUTSIDE):
    """Run commands one after the other in a folder, in one new process with another package on its path.

    Returns (exit code, standard output, standard error) of each.
    """
    where = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(path)))}
    words = json.dumps([[str(word) for word in command] for command in commands])
    process = [sys.executable, "-c", ONE_AFTER_THE_OTHER, words]
    done = subprocess.run(process, cwd=folder, env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out, err = (text.split("\f")[:-1] for text in (done.stdout, done.stderr))
    return [(int(said[-1]), said[:-1], told) for said, told in zip(out, err, strict=True)]


def ran(folder, *commands, path=OUTSIDE):
    found = run(folder, *commands, path=path)
    assert [(code, err) for code, _, err in found if code] == []
    return [out for _, out, _ in found]


def test_members_of_an_installed_package_train_attack_defend_and_report(tmp_path):
    data = ("--dataset", "stripes", "--models", "one-layer")
    attacks = ("--attack", "random-search", "--attack", "dip", "--iterations", "4", "--targets", "4", "--no-control")
    shared = ("--out", "result")
    found = run(
        tmp_path,
        ("train", "--method", "fed-direction", *data, "--defense", "jitter:spread=0.2", *SMALL, "--out", "run"),
        ("attack", "--run", "run", "--target", "direction", *attacks, *shared),
        ("report", "run", "result", "--out", "page", "--quiet"),
    )
    assert [(code, err) for code, _, err in found if code] == []
    assert not [told for _, out, err in found for told in (out, err) if "a worker failed" in told]
    for name in ("random-search", "dip"):
        assert (tmp_path / "result" / name / "grid.png").is_file()
    page = "".join(path.read_text() for path in (tmp_path / "page").rglob("*.html"))
    for name in ("fed-direction", "jitter spread=0.2", "random-search", "direction", "stripes"):
        assert name in page, name


def test_a_wrong_reference_is_one_line(tmp_path):
    wrong = (
        (("train", "--method", "outsider:Nothing"), "method 'outsider:Nothing': module 'outsider' has no 'Nothing'"),
        (("train", "--method", "outsider:Jitter"), "expected a fedpriv.federation.method.Method, got type"),
        (("train", "--dataset", "nowhere:load"), "data set 'nowhere:load': module 'nowhere' cannot be imported"),
        (
            ("train", "--defense", "outsider:RandomSearch:tries=3"),
            "defense 'outsider:RandomSearch': expected a dataclass",
        ),
        (("train", "--models", "outsider:two_layers"), "model 'outsider:two_layers': module 'outsider' has no"),
        (("attack", "--target", "outsider:FED_DIRECTION"), "expected a subclass of fedpriv.uploads.payload.Payload"),
        (("attack", "--target", "direction", "--attack", "outsider:Jitter"), "expected a dataclass that inherits"),
    )
    found = run(tmp_path, *(arguments for arguments, _ in wrong))
    for (code, _, err), (_, complaint) in zip(found, wrong, strict=True):
        assert code == 2, complaint
        assert complaint in err
        assert err.count("\n") == 1
    assert not any(tmp_path.iterdir())


def test_lists_mark_whose_a_member_is(tmp_path):
    names = [("list", kind, "--quiet") for kind in ("payloads", "targets")]
    table, payloads, targets = ran(tmp_path, ("list", "datasets", "--json"), *names)
    rows = {row["name"]: row["from"] for row in json.loads(table)}
    assert rows["stripes"] == "outsider 1.2"
    assert rows["digits"] == "fedpriv"
    assert "direction" in payloads.split()
    assert "direction" in targets.split()
