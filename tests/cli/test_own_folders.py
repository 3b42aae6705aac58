"""Folders of one's own images: called by one name, and what is done to the images is said and kept."""

import json

import pytest
from command_line import call
from PIL import Image

from fedpriv.federation.run_directory import RunDirectory


@pytest.fixture
def birds(tmp_path):
    """Two classes of images that are neither square nor of one size."""
    for place, name in enumerate(("owl", "wren")):
        for part, number in (("train", 12), ("val", 4)):
            for own in range(number):
                path = tmp_path / "birds" / part / name / f"{own}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (16 + own, 20), 90 * place + own).save(path)
    return tmp_path / "birds"


def test_a_folder_has_one_name_and_what_is_done_to_its_images_is_kept(birds, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["--dataset", "folder", "--data-dir", "birds", "--image-size", "8", "--partition", "iid", "--clients", "2"]
    done = "32 of 32 images scaled, cropped or converted to 8x8 grey"
    code, told, _ = call(capsys, "train", "--method", "fedgh", "--rounds", "1", "--auxiliary", "0", *given)
    assert code == 0
    assert f"birds: {done}" in told
    path = tmp_path / "runs" / "fedgh-birds"
    summary = RunDirectory.open(path).summary
    assert (summary.dataset, summary.images) == ("birds", done)
    code, _, _ = call(capsys, "report", path, "--out", "page")
    assert code == 0
    page = (tmp_path / "page" / "runs.md").read_text()
    assert done in page
    code, out, _ = call(capsys, "data", *given, "--json")
    assert code == 0
    assert "birds" in json.dumps(json.loads(out))
