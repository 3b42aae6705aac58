"""Images of another domain: any data set but the clients', brought to their form, without classes."""

import json

import pytest
import torch
from compare import expect_same
from federations import DIGITS
from PIL import Image

from fedpriv.attacks.observation import ThreatModel
from fedpriv.cli.main import run
from fedpriv.federation.run_directory import RunConfig
from fedpriv.sources.auxiliary import MOST_IMAGES, foreign_images, parse_foreign, refuse_foreign
from fedpriv.util.errors import UserError

RUN = [
    "attack",
    "--target",
    "representation",
    *DIGITS,
    "--per-class",
    "20",
    "--clients",
    "4",
    "--partition",
    "iid",
    "--rounds",
    "2",
]
SMALL = [*RUN, "--targets", "3", "--iterations", "5", "--no-control", "--json", "--out", "r"]
OTHER = ["--knowledge", "attacker_data=other_domain", "--knowledge"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Red and green images of 12 x 6 pixels: 20 a class."""
    root = tmp_path_factory.mktemp("foreign")
    for name, colour in (("red", (255, 0, 0)), ("green", (0, 255, 0))):
        (root / name).mkdir()
        for number in range(20):
            Image.new("RGB", (12, 6), colour).save(root / name / f"{number:02}.png")
    return root


def test_foreign_images_take_the_form_of_the_clients(folder):
    grey = foreign_images(f"folder:{folder}", (1, 8, 8), 0)
    assert grey.shape == (40, 1, 8, 8)
    # ITU-R 601: red has 0.299 of white's brightness, green 0.587.
    levels = grey.flatten(1).mean(1).sort().values
    torch.testing.assert_close(levels[:20], torch.full((20,), round(0.299 * 255) / 255))
    torch.testing.assert_close(levels[20:], torch.full((20,), round(0.587 * 255) / 255))
    assert foreign_images(f"folder:{folder}", (3, 8, 10), 0).shape == (40, 3, 8, 10)


def test_of_a_large_set_some_are_drawn_by_seed():
    one, again, two = (foreign_images("digits", (3, 16, 16), seed) for seed in (0, 0, 1))
    assert one.shape == (MOST_IMAGES, 3, 16, 16)
    expect_same(one, again)
    assert not torch.equal(one, two)


def test_a_name_may_carry_a_folder():
    assert parse_foreign("digits") == ("digits", None)
    name, path = parse_foreign("folder:a:b")
    assert (name, str(path)) == ("folder", "a:b")
    with pytest.raises(UserError, match="did you mean 'digits'"):
        parse_foreign("digitz")


def test_the_clients_own_data_set_is_not_foreign(folder):
    with pytest.raises(UserError, match="the clients hold images of that data set"):
        refuse_foreign(ThreatModel(foreign="digits"), RunConfig(dataset="digits"))
    own = RunConfig(dataset="folder", data_dir=str(folder))
    with pytest.raises(UserError, match="the clients hold images of that data set"):
        refuse_foreign(ThreatModel(foreign=f"folder:{folder}"), own)
    refuse_foreign(ThreatModel(foreign="digits"), own)
    refuse_foreign(ThreatModel(foreign=f"folder:{folder}"), RunConfig(dataset="digits"))


def test_a_decoder_trains_on_foreign_images_and_the_card_says_which(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([*SMALL, *OTHER, f"foreign=folder:{folder}", "--attack", "decoder"]) == 0
    record = json.loads(capsys.readouterr().out)["attacks"]["decoder"]
    assert record["knowledge"]["attacker_data"] == "other_domain"
    assert record["knowledge"]["foreign"] == f"folder:{folder}"
    assert "the data set that the attacker&#39;s images are from" in (tmp_path / "r" / "report.html").read_text()


def test_attacks_that_need_classes_go_without_foreign_images(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = ["--attack", "property", "--attack", "pixels"]
    prototypes = [*SMALL, *OTHER, f"foreign=folder:{folder}", *wanted, "--attack-option", "property.question=majority"]
    assert run([part.replace("representation", "prototype") for part in prototypes]) == 2
    assert "attacker_data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("grants", "complaint"),
    [
        (["attacker_data=other_domain"], "both attacker_data=other_domain and foreign=NAME"),
        (["foreign=digits"], "both attacker_data=other_domain and foreign=NAME"),
        (["attacker_data=other_domain", "foreign=digits"], "the clients hold images of that data set"),
        (["attacker_data=other_domain", "foreign=cifar10"], "behind a colon: foreign=cifar10:FOLDER"),
        (["attacker_data=other_domain", "foreign=folder:/nowhere"], "image folder not found"),
        (["attacker_data=other_domain", "foreign=cifar10:x", "extractor=shadow"], "own images with their classes"),
    ],
)
@pytest.mark.parametrize(
    "command", [SMALL, ["audit", "--methods", "fedallrep", *DIGITS, "--per-class", "20", "--dry-run"]]
)
def test_foreign_images_that_cannot_be_are_refused_at_once(command, grants, complaint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([*command, *(part for grant in grants for part in ("--knowledge", grant))]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert len(said.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
