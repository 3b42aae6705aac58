import dataclasses
import json
import math

import pytest
import torch
from compare import expect_same
from eval_cases import ABOUT, asked, defended, firsts, images, reconstruction, truths
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedpriv.eval.score import score
from fedpriv.eval.storage import (
    holds_scores,
    is_attack_directory,
    load_attack,
    load_metrics,
    load_scores,
    save_attack,
    write_record,
)
from fedpriv.sources.truth import Pool
from fedpriv.util.errors import UserError
from fedpriv.util.files import placing, write_text


def stored(home, *, shuffled=True, metrics=True, **change):
    secrets = truths([1, 2, 5, 12])
    found = dataclasses.replace(reconstruction(firsts(secrets) * 0.9), **change)
    control = reconstruction(firsts(secrets).roll(2, 0)) if shuffled else None
    record = score(found, secrets, control, seed=0, about=ABOUT) if metrics else None
    save_attack(home, reconstruction=found, truths=secrets, about=ABOUT, shuffled=control, metrics=record)
    return found, secrets, record


def rewrite(home, name, change):
    """Change tensors (by a function) or header of a stored safetensors file."""
    path = home / name
    with safe_open(path, framework="pt") as file:
        entry = file.metadata()["fedpriv"]
    blocks = load_file(path)
    if callable(change):
        change(blocks)
    else:
        entry = json.dumps(json.loads(entry) | change) if isinstance(change, dict) else change
    with placing([path]) as temporary:
        save_file(blocks, temporary[path], metadata={"fedpriv": entry})


def test_round_trip(tmp_path):
    found, secrets, record = stored(tmp_path, features=torch.randn(4, 3))
    again = load_attack(tmp_path)
    assert again.reconstruction.targets == found.targets
    assert again.reconstruction.cost == found.cost
    for name in ("images", "objective", "labels", "converged", "features"):
        expect_same(getattr(again.reconstruction, name), getattr(found, name))
    for left, right in zip(again.truths, secrets, strict=True):
        for field in ("members", "weights", "labels"):
            expect_same(getattr(left, field), getattr(right, field))
        for field in ("guesses", "guess_labels", "decoys", "decoy_labels"):
            expect_same(getattr(left.pool, field), getattr(right.pool, field))
        assert left.feature is None
    assert again.metrics == record
    assert again.about.command == ABOUT.command
    assert is_attack_directory(tmp_path)
    rescored = score(again.reconstruction, again.truths, again.shuffled, seed=again.about.seed, about=again.about)
    assert rescored == record


def test_every_image_is_stored_once_and_bytes_stay_bytes(tmp_path):
    secrets = truths([1] * 5)
    bytes_ = (images(120, seed=3) * 255).round() / 255
    pools = [Pool.divided(bytes_[start:], torch.arange(start, 120) % 3, 1) for start in (0, 30)]
    secrets = tuple(dataclasses.replace(truth, pool=pools[row % 2]) for row, truth in enumerate(secrets))
    save_attack(tmp_path, reconstruction=reconstruction(firsts(secrets)), truths=secrets, about=ABOUT)
    blocks = load_file(tmp_path / "truth.safetensors")
    assert len(blocks["bytes"]) == 120
    assert blocks["bytes"].dtype == torch.uint8
    assert len(blocks["floats"]) == 5  # the members
    again = load_attack(tmp_path).truths
    for left, right in zip(again, secrets, strict=True):
        expect_same(left.pool.guesses, right.pool.guesses)
        expect_same(left.pool.decoys, right.pool.decoys)
    assert again[0].pool is again[2].pool


def test_altered_and_missing_files_are_named(tmp_path):
    for name in ("reconstruction.safetensors", "shuffled.safetensors", "truth.safetensors"):
        stored(tmp_path)
        content = bytearray((tmp_path / name).read_bytes())
        content[-1] ^= 1
        (tmp_path / name).write_bytes(bytes(content))
        with pytest.raises(UserError, match=f"{name}: altered"):
            load_attack(tmp_path)
    for name in ("reconstruction.safetensors", "shuffled.safetensors", "about.json"):
        stored(tmp_path)
        (tmp_path / name).unlink()
        with pytest.raises(UserError, match=f"{name}: (no such file|missing)"):
            load_attack(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("reconstruction.safetensors", lambda b: b.pop("images"), "tensor 'images' is missing"),
        ("reconstruction.safetensors", lambda b: b.update(images=b["images"][:3]), "first of 4 targets"),
        ("reconstruction.safetensors", lambda b: b.update(labels=b["labels"].float()), "'labels' is torch.float32"),
        (
            "shuffled.safetensors",
            lambda b: b.update(images=b["images"][..., :4].contiguous()),
            "do not fit the reconstruction's",
        ),
        ("truth.safetensors", lambda b: b.update(floats=b["floats"] + 2), r"pools: .* expected values in \[0, 1\]"),
        ("truth.safetensors", lambda b: b.pop("t0"), "target 0 lacks a tensor"),
        ("truth.safetensors", lambda b: b.update(t0=b["t0"] + 1000), "target 0 lacks a tensor"),
        ("reconstruction.safetensors", {"format": "other"}, "format / content"),
        ("truth.safetensors", {"content": "reconstruction"}, "format / content"),
        ("reconstruction.safetensors", "{", "not readable as safetensors with a header of ours"),
        ("reconstruction.safetensors", "[]", "the header should be an object"),
        ("reconstruction.safetensors", {"targets": [{"colour": 1}]}, "'targets' or 'cost'"),
        ("truth.safetensors", {"truths": [], "pools": []}, "0 truths, expected 4"),
        ("truth.safetensors", {"pools": None}, "pools lacks a tensor or field"),
    ],
)
def test_wrong_tensors_and_headers_are_named(tmp_path, name, change, message):
    stored(tmp_path)
    rewrite(tmp_path, name, change)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        load_attack(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("about.json", {"seed": None}, "field 'seed' is missing; attack again with: fedpriv attack --target rep"),
        ("about.json", {"command": None, "seed": "0"}, "field 'seed': input should be a valid integer; attack again"),
        ("about.json", {"knowledge": "all"}, "field 'knowledge'"),
        ("about.json", {"colour": "red"}, "field 'colour' is unknown"),
        ("about.json", {"kind": "membership"}, "field 'auc' is missing"),
        ("about.json", {"kind": "about face"}, "input tag 'about face'"),
        (
            "about.json",
            {"version": 1},
            "format 1, but this version reads format 5; .*attack again with: fedpriv attack",
        ),
        ("metrics.json", {"version": 99}, "format 99, but this version reads format 5; .*score again with: fedpriv sc"),
        ("metrics.json", {"version": None}, "a record of format None, .*score again with: fedpriv score"),
        ("metrics.json", {"floors": None}, "field 'floors' is missing; score again"),
        ("metrics.json", {"advantage_db": {"mean": 1}}, "field 'advantage_db.ci95' is missing"),
        ("metrics.json", {"n_targets": 7}, "'n_targets' is 7"),
    ],
)
def test_wrong_json_is_named(tmp_path, name, change, message):
    stored(tmp_path)
    value = json.loads((tmp_path / name).read_text())
    value.update(change)
    value = {key: entry for key, entry in value.items() if entry is not None}
    write_text(tmp_path / name, json.dumps(value))
    with pytest.raises(UserError, match=f"{name}: .*{message}"):
        load_attack(tmp_path)


@pytest.mark.parametrize("kind", ["membership", "property"])
def test_records_of_inference_round_trip(tmp_path, kind):
    record = asked(kind, 1 / 3, None, defenses=(defended(scale=0.3),), options={"bound": math.inf})
    write_record(tmp_path / "new", record)
    assert holds_scores(tmp_path / "new")
    assert load_scores(tmp_path / "new") == record
    (tmp_path / "new" / f"{kind}.json").write_text('{"schema": 1}')
    with pytest.raises(UserError, match=f"{kind}.json: a record of format None.*attack again"):
        load_scores(tmp_path / "new")


def test_a_value_that_is_not_finite_is_none_in_the_record(tmp_path):
    secrets = truths([1] * 3)
    true = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]])
    secrets = tuple(dataclasses.replace(one, feature=feature) for one, feature in zip(secrets, true, strict=True))
    found = reconstruction(firsts(secrets), features=true + 1)
    record = score(found, secrets, found, seed=0, about=ABOUT)
    error = record.metrics.relative_error
    assert (error.mean, error.per_target[1]) == (None, None)
    assert error.per_target[0] == pytest.approx(2**0.5 / 5)
    assert error.guesses == {"shuffled": None}
    write_record(tmp_path, record)
    assert load_metrics(tmp_path) == record
