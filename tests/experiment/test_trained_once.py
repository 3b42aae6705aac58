"""What an attacker trains is trained once for a run, whoever asks for it, and is what training anew gives."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from federations import DIGITS

from fedpriv.attacks.observation import ThreatModel
from fedpriv.attacks.trained import Same, Trained
from fedpriv.cli.main import run
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.sources.case import build_case
from fedpriv.sources.federation import prepare
from fedpriv.sources.run import RunSource

SMALL = [*DIGITS, "--per-class", "20", "--clients", "3", "--partition", "iid", "--rounds", "2", "--public", "40"]


def counted(monkeypatch, where):
    """Count how often a function is called with which client, or seed."""
    module, _, name = where.rpartition(".")
    home = __import__(module, fromlist=[name])
    original, calls = getattr(home, name), Counter()

    def call(*given, **rest):
        calls[given[1] if name.startswith("shadow") else given[2:4]] += 1
        return original(*given, **rest)

    monkeypatch.setattr(home, name, call)
    return calls


@pytest.fixture
def trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["train", "--method", "fedproto", *SMALL, "--capture", "all", "--out", "run", "--quiet"]) == 0
    return Path("run")


def test_attacks_controls_and_budgets_share_what_was_trained(trained, monkeypatch):
    shadows = counted(monkeypatch, "fedpriv.sources.case.shadow_extractor")
    decoders = counted(monkeypatch, "fedpriv.attacks.inversion.decoder.train_decoder")
    arguments = ["attack", "--target", "prototype", "--run", str(trained), "--targets", "40", "--budget", "2,4"]
    arguments += ["--knowledge", "extractor=shadow", "--knowledge", "attacker_data=same_domain", "--out", "r"]
    wanted = [word for name in ("pixels", "decoder") for word in ("--attack", name)]
    assert run([*arguments, *wanted, "--quiet"]) == 0
    assert sorted(shadows.items()) == [(0, 1), (1, 1), (2, 1)]
    assert len(decoders) == 2  # one for each budget, shared with its control
    assert set(decoders.values()) == {1}


@pytest.mark.parametrize("extractor", ["shadow", "white_box"])
def test_what_is_kept_is_what_training_anew_gives(trained, extractor):
    directory = RunDirectory.open(trained)
    federation = prepare(directory.config, torch.device("cpu"))
    card, kept = ThreatModel(extractor=extractor, attacker_data="same_domain"), Trained()
    images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def asked(trained):
        seen = build_case(RunSource(directory, federation, "prototype"), card, n_targets=3, seed=0, trained=trained)
        return seen.knowledge.extractors

    first, again, anew = asked(kept), asked(kept), asked(Trained())
    assert first == again
    for client, extract in first.items():
        assert extract is not anew[client]
        assert torch.equal(extract(images), anew[client](images))


def test_objects_are_keys_by_identity():
    one, other = torch.zeros(2), torch.zeros(2)
    assert Same(one) == Same(one)
    assert Same(one) != Same(other)
    kept = Trained()
    made = [kept.get(("net", Same(value)), object) for value in (one, one, other)]
    assert made[0] is made[1]
    assert made[0] is not made[2]
