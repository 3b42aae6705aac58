"""Redacted pages, pictures and folders hold no private image, where the same search finds them in what is not redacted."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from command_line import call, done, refused, words
from PIL import Image
from pixel_search import found_in
from torch import nn

import fedpriv
from fedpriv.util.errors import UserError

DRAW = torch.Generator().manual_seed(0)
PRIVATE = torch.rand(4, 1, 28, 28, generator=DRAW)
"""Four patients, one a client: noise, so that nothing looks like them by chance."""
AUXILIARY = torch.rand(24, 1, 28, 28, generator=DRAW)
RULES = ("blur", "omit")


def uploads():
    """A model whose first layer is linear, and the gradient of each patient: `linear-layer` reads the image off it."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 6), nn.Sigmoid(), nn.Linear(6, 3))
    label = torch.tensor([1])
    losses = [nn.functional.cross_entropy(model(image[None]), label) for image in PRIVATE]
    return model, [fedpriv.Gradient(torch.autograd.grad(loss, list(model.parameters()))) for loss in losses]


def attacked(out, **more):
    model, gradients = uploads()
    return fedpriv.attack_uploads(
        gradients,
        target="model",
        model=model,
        images=[image[None] for image in PRIVATE],
        labels=[torch.tensor([1])] * 4,
        auxiliary=AUXILIARY,
        auxiliary_labels=torch.arange(24) % 3,
        attacks="linear-layer",
        out=out,
        **more,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return attacked(tmp_path_factory.mktemp("plain") / "out")


@pytest.fixture(scope="module", params=RULES)
def redacted(request, tmp_path_factory):
    return request.param, attacked(tmp_path_factory.mktemp("redacted") / "out", redact=request.param)


def test_the_attack_reads_patients_off_and_the_search_finds_them_everywhere(plain):
    assert plain.records["linear-layer"].metrics.psnr_db.mean > 60  # what it makes is the patient
    stored = [f"linear-layer/{name}.safetensors" for name in ("shuffled", "reconstruction", "truth")]
    assert sorted(found_in(plain.path, PRIVATE)) == sorted(["linear-layer/grid.png", *stored, "report.html"])
    assert found_in(plain.path, torch.rand(4, 1, 28, 28)) == []


def digests(folder):
    """Return by file the SHA-256 of what holds an image, by which a candidate could be confirmed."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in found_in(folder, PRIVATE)}


def files_with(folder, texts):
    whole = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {
        str(file.relative_to(folder)) for file, content in whole.items() for text in texts if text.encode() in content
    }


def test_no_record_of_a_redacted_attack_has_a_digest_of_what_is_hidden(redacted, plain, tmp_path, capsys):
    rule, result = redacted
    hidden = digests(plain.path / "linear-layer")
    assert files_with(plain.path, hidden.values()) == {"linear-layer/.fedpriv.jsonl"}
    assert files_with(result.path, hidden.values()) == set()
    shutil.copytree(plain.path, tmp_path / "scored")
    code, out, err = call(capsys, "score", tmp_path / "scored", "--redact", rule)
    assert (code, "pages that were made of these before" in out + err) == (0, True)
    assert found_in(tmp_path / "scored" / "linear-layer", torch.cat([PRIVATE, AUXILIARY])) == []
    assert json.loads((tmp_path / "scored" / "linear-layer" / "about.json").read_text())["redacted"] == rule
    refused(capsys, "score", tmp_path / "scored")
    for folder in (result.path, tmp_path / "scored"):
        assert files_with(folder, hidden.values()) == set()
        fedpriv.report(folder / "linear-layer", out=tmp_path / f"page-{folder.name}")  # every file is still its own


def test_nothing_of_a_redacted_attack_holds_a_patient(redacted, plain):
    rule, result = redacted
    assert found_in(result.path, torch.cat([PRIVATE, AUXILIARY])) == []
    names = {path.name for path in (result.path / "linear-layer").iterdir()}
    assert "truth.safetensors" not in names
    assert ("grid.png" in names) == (rule == "blur")
    record, other = result.records["linear-layer"], plain.records["linear-layer"]
    for field in ("metrics", "floors", "advantage_db", "n_targets"):
        assert getattr(record, field) == getattr(other, field)  # numbers and floors stay
    assert result.verdict == plain.verdict
    page = (result.path / "report.html").read_text()
    assert ("data:image/png" in page) == (rule == "blur")
    assert ("No pictures: this result is redacted" in page) == (rule == "omit")
    with pytest.raises(UserError, match="images were kept out of it"):
        result.images()
    with pytest.raises(UserError, match="without it nothing can be scored"):
        fedpriv.score(result)


def test_what_is_stored_redacted_is_never_shown_by_a_milder_rule(redacted, tmp_path):
    rule, result = redacted
    for asked in (None, "none", "blur", "omit"):
        report = fedpriv.report(result, out=tmp_path / str(asked), redact=asked)
        page = (report.path / "report.html").read_text()
        assert found_in(report.path, torch.cat([PRIVATE, AUXILIARY])) == []
        assert ("data:image/png" in page) == (rule == "blur" and asked != "omit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A data set of noise: two classes of 12 images."""
    home = tmp_path_factory.mktemp("images")
    images = torch.rand(24, 28, 28, generator=torch.Generator().manual_seed(4))
    for number, image in enumerate(images):
        place = home / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        Image.fromarray(np.round(255 * image.numpy()).astype(np.uint8)).save(place / f"{number:02d}.png")
    return home, (255 * images).round()[:, None] / 255


def test_no_command_stores_or_draws_a_patient(folder, tmp_path, capsys):
    home, images = folder
    data = [*words("--dataset folder --data-dir"), str(home), *words("--clients 2 --partition iid --image-size 28")]
    data += ["--rounds", "1", "--lr", "0.1", "--models", "small-mlp", "--auxiliary", "0"]
    cheap = ["--target", "prototype", "--attack", "pixels", "--iterations", "2", "--targets", "2"]
    done(capsys, "attack", *cheap, *data, "--out", "plain", "--quiet")
    assert {"pixels/truth.safetensors", "pixels/grid.png", "report.html"} <= set(found_in("plain", images))
    rule = ["--redact", "blur", "--quiet"]
    done(capsys, "attack", *cheap, "--run", "plain/run", "--out", "out", *rule)
    study = ["--methods", "fedproto", "--attacks", "pixels:iterations=2", "--targets", "2", "--no-local", *data]
    done(capsys, "audit", *study, "--out", "study", *rule)
    assert found_in("out", images) == []
    assert found_in("study", images) == []
    assert list((tmp_path / "study").glob("attacks/*/pixels/grid.png"))
    assert json.loads((tmp_path / "study" / "study.json").read_text())["written"]["redact"] == "blur"
    code, _, err = call(capsys, "audit", *study, "--out", "study", "--quiet")
    assert (code, "holds another study (redact differs)" in err) == (2, True)
    again = [*cheap, "--run", "plain/run", "--out", "out", "--resume", "--quiet"]
    code, _, err = call(capsys, "attack", *again)
    assert (code, "made with other flags (redact differ)" in err) == (2, True)
