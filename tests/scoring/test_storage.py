import dataclasses
import json

import pytest
import torch
from compare import expect_same
from eval_cases import ABOUT, firsts, reconstruction, truths
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedpriv.scoring.score import score
from fedpriv.scoring.storage import is_attack_directory, load_attack, save_attack, save_metrics
from fedpriv.util.errors import UserError
from fedpriv.util.files import digest


def stored(home, *, permuted=True, metrics=True, **change):
    secrets = truths([1, 2, 5, 12])
    found = dataclasses.replace(reconstruction(firsts(secrets) * 0.9), **change)
    control = reconstruction(firsts(secrets).roll(2, 0)) if permuted else None
    record = score(found, secrets, control, seed=0, about=ABOUT) if metrics else None
    save_attack(home, reconstruction=found, truths=secrets, about=ABOUT, permuted=control, metrics=record)
    return found, secrets, record


def rewrite(home, name, change=None, header=None):
    """Change a stored safetensors file and its digest, as a careful forger would."""
    path = home / name
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    blocks = load_file(path)
    if change is not None:
        change(blocks)
    if header is not None:
        metadata.update(header)
    save_file(blocks, path, metadata=metadata)
    about = json.loads((home / "about.json").read_text())
    about["files"][name] = digest(path)
    (home / "about.json").write_text(json.dumps(about))


def test_round_trip(tmp_path):
    found, secrets, record = stored(tmp_path, features=torch.randn(4, 3))
    again = load_attack(tmp_path)
    assert again.reconstruction.targets == found.targets
    assert again.reconstruction.cost == found.cost
    for name in ("images", "objective", "chosen", "labels", "converged", "features"):
        expect_same(getattr(again.reconstruction, name), getattr(found, name))
    for left, right in zip(again.truths, secrets, strict=True):
        for field in ("members", "weights", "labels", "nonmembers", "nonmember_labels"):
            expect_same(getattr(left, field), getattr(right, field))
        assert left.feature is None
    assert again.metrics == record
    assert again.about["command"] == ABOUT["command"]
    assert is_attack_directory(tmp_path)
    rescored = score(again.reconstruction, again.truths, again.permuted, seed=again.about["seed"], about=again.about)
    assert rescored == record


def test_no_temporary_files_stay_behind(tmp_path):
    stored(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "about.json",
        "metrics.json",
        "permuted.safetensors",
        "reconstruction.safetensors",
        "truth.safetensors",
    ]


def test_a_shared_pool_is_stored_once_and_bytes_stay_bytes(tmp_path):
    secrets = truths([1] * 5)
    pool = (secrets[0].nonmembers * 255).round().to(torch.uint8).float().div_(255)
    secrets = tuple(dataclasses.replace(truth, nonmembers=pool) for truth in secrets)
    save_attack(tmp_path, reconstruction=reconstruction(firsts(secrets)), truths=secrets, about=ABOUT)
    blocks = load_file(tmp_path / "truth.safetensors")
    assert sum(block.shape[0] == len(pool) and block.dim() == 4 for block in blocks.values()) == 1
    assert any(block.dtype == torch.uint8 for block in blocks.values())
    expect_same(load_attack(tmp_path).truths[3].nonmembers, pool)


def test_a_diverged_reconstruction_is_kept(tmp_path):
    secrets = truths([1, 1])
    pictures = firsts(secrets)
    pictures[0] = float("nan")
    save_attack(tmp_path, reconstruction=reconstruction(pictures), truths=secrets, about=ABOUT)
    assert load_attack(tmp_path).reconstruction.images[0].isnan().all()


def test_without_the_private_truth_the_rest_still_reads(tmp_path):
    stored(tmp_path)
    (tmp_path / "truth.safetensors").unlink()
    again = load_attack(tmp_path)
    assert again.truths is None
    assert again.metrics is not None


def test_writing_again_leaves_nothing_of_the_old(tmp_path):
    stored(tmp_path)
    stored(tmp_path, permuted=False, metrics=False)
    again = load_attack(tmp_path)
    assert again.permuted is None
    assert again.metrics is None
    assert not (tmp_path / "permuted.safetensors").exists()


@pytest.mark.parametrize("name", ["reconstruction.safetensors", "permuted.safetensors", "truth.safetensors"])
def test_an_altered_file_is_noticed(tmp_path, name):
    stored(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(bytes(content))
    with pytest.raises(UserError, match=f"{name}: content was altered"):
        load_attack(tmp_path)


@pytest.mark.parametrize("name", ["reconstruction.safetensors", "permuted.safetensors", "about.json"])
def test_a_missing_file_is_named(tmp_path, name):
    stored(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match=f"{name}: no such file"):
        load_attack(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("reconstruction.safetensors", lambda b: b.pop("images"), "tensor 'images' is missing"),
        ("reconstruction.safetensors", lambda b: b.update(images=b["images"][:3]), "first of 4 targets"),
        ("reconstruction.safetensors", lambda b: b.update(chosen=b["chosen"] + 5), "'chosen' should lie in 0..1"),
        ("reconstruction.safetensors", lambda b: b.update(labels=b["labels"].float()), "'labels' is torch.float32"),
        (
            "permuted.safetensors",
            lambda b: b.update(images=b["images"][..., :4].contiguous()),
            "do not fit the reconstruction's",
        ),
        ("truth.safetensors", lambda b: b.update(t0=b["t0"] + 2), r"target 0: .* expected values in \[0, 1\]"),
        ("truth.safetensors", lambda b: b.pop("t0"), "truth 0 lacks a tensor"),
    ],
)
def test_wrong_tensors_are_named(tmp_path, name, change, message):
    stored(tmp_path)
    rewrite(tmp_path, name, change)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        load_attack(tmp_path)


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("reconstruction.safetensors", {"format": "other"}, "format / content"),
        ("truth.safetensors", {"content": "reconstruction"}, "format / content"),
        ("reconstruction.safetensors", {"header": "{"}, "'header' is missing or no JSON"),
        ("reconstruction.safetensors", {"header": '{"targets": [{"colour": 1}]}'}, "'targets' or 'cost'"),
        ("truth.safetensors", {"header": '{"truths": []}'}, "0 truths, expected 4"),
    ],
)
def test_wrong_headers_are_named(tmp_path, name, header, message):
    stored(tmp_path)
    rewrite(tmp_path, name, header=header)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        load_attack(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("about.json", {"format": "other"}, "field 'format' is 'other'"),
        ("about.json", {"seed": None}, "field 'seed' is missing"),
        ("about.json", {"knowledge": "all"}, "field 'knowledge' should be an object"),
        ("about.json", {"files": {}}, "does not list reconstruction.safetensors"),
        ("metrics.json", {"schema": 99}, "field 'schema' is 99, expected 1"),
        ("metrics.json", {"floors": None}, "field 'floors' is missing"),
        ("metrics.json", {"n_targets": 7}, "'n_targets' is 7"),
    ],
)
def test_wrong_json_is_named(tmp_path, name, change, message):
    stored(tmp_path)
    value = json.loads((tmp_path / name).read_text())
    value.update(change)
    value = {key: entry for key, entry in value.items() if entry is not None}
    (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(UserError, match=f"{name}: .*{message}"):
        load_attack(tmp_path)


def test_what_is_no_attack_directory(tmp_path):
    assert not is_attack_directory(tmp_path)
    assert not is_attack_directory(tmp_path / "absent")
    (tmp_path / "about.json").write_text("[1, 2")
    assert not is_attack_directory(tmp_path)
    with pytest.raises(UserError, match="not readable as JSON"):
        load_attack(tmp_path)


def test_metrics_hold_no_nan(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_metrics(tmp_path, {"mean": float("nan")})
    assert not (tmp_path / "metrics.json").exists()
