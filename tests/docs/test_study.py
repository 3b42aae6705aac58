"""docs/study.md is made from the cards in docs/study, which hold no path of the machine that made them."""

import importlib.util
import re
from pathlib import Path

from fedpriv.claims import claims
from fedpriv.eval.claims import ClaimCard

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
