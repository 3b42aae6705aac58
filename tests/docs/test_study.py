"""docs/study.md is made from the cards in docs/study, which hold no path of the machine that made them."""

import importlib.util
import re
from pathlib import Path

from fedpriv.claims import claims
from fedpriv.pages.claim_card import never
from fedpriv.scoring.records import ClaimCard

MAKER = Path(__file__).parents[2] / "docs" / "make_study.py"


def maker():
    spec = importlib.util.spec_from_file_location("make_study", MAKER)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_page_is_up_to_date():
    made = maker()
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run: python docs/make_study.py"


def test_cards_are_of_known_claims_at_scale_cpu_and_their_grids_are_there():
    folder = maker().CARDS
    for file in folder.glob("*/claim.json"):
        text = file.read_text(encoding="utf-8")
        card = ClaimCard.model_validate_json(text)
        assert card.name == file.parent.name
        assert card.name in claims()
        assert card.scale == "cpu" or claims()[card.name].counted
        assert all((file.parent / grid).is_file() for grid in card.grids)
        assert not re.search(r"[ =\"](/\w+){2}", text)


def test_a_card_is_taken_over_without_paths(tmp_path):
    from PIL import Image

    made = maker()
    made.CARDS = tmp_path / "study"
    source = Path(made.__file__).parent / "study" / "fedre-figure-4" / "claim.json"
    result = tmp_path / "result"
    (result / "study").mkdir(parents=True)
    Image.new("RGB", (1200, 600)).save(result / "study" / "grid.png")
    card = ClaimCard.model_validate_json(source.read_text()).model_copy(
        update={
            "command": "fedpriv reproduce x --data-dir /home/me/data --images CIFAR-10=/home/me/c",
            "left_out": (
                "FedTGP | CIFAR-100: cifar100 not found: looked for /home/me/data/cifar-100-python; fetch it",
            ),
            "grids": ("study/grid.png",),
        }
    )
    (result / "claim.json").write_text(card.model_dump_json())
    made.take_over(result)
    kept = (tmp_path / "study" / card.name / "claim.json").read_text()
    assert "/home" not in kept
    assert "looked for DIR; fetch it" in kept
    assert "--images CIFAR-10=DIR/cifar10-jpeg" in kept
    with Image.open(tmp_path / "study" / card.name / "grid-1.png") as picture:
        assert picture.size == (900, 450)


def test_a_mean_over_the_seeds_that_reached_an_accuracy_says_so():
    card = ClaimCard.model_validate_json((maker().CARDS / "fedral-table-4-rounds" / "claim.json").read_text())
    cell = next(one for one in card.cells if one.measured is not None and one.measured.n == 2)
    assert never(cell, 3) == ", under 2 of 3 seeds: never under the others"
    assert never(cell, 2) == ""
    assert never(cell.model_copy(update={"unit": "%"}), 3) == ""
