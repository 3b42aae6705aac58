"""What ``fedpriv explain`` says of a member, and that every member has something to say."""

import pytest
from command_line import call

import fedpriv
from fedpriv.attacks import ATTACKS
from fedpriv.claims import claims
from fedpriv.datasets import DATASETS
from fedpriv.defenses import DEFENSES
from fedpriv.methods import METHODS
from fedpriv.models import FAMILIES, MODELS
from fedpriv.reports.page import attack_pages
from fedpriv.uploads import PAYLOADS
from fedpriv.util.glossary import find_word

TABLES = (METHODS, ATTACKS, DEFENSES, PAYLOADS, DATASETS, MODELS)


def test_no_two_members_share_a_name():
    names = [name for table in TABLES for name in table.builtins] + [*FAMILIES, *claims()]
    assert len(names) == len(set(names))


def test_every_attack_has_its_page_and_every_page_its_attack():
    assert attack_pages().keys() - {"extractor=shadow"} == ATTACKS.builtins.keys()
    assert fedpriv.explain("pixels").page.startswith("# pixels:")  # though dip's page is about it too


@pytest.mark.parametrize(
    ("name", "kind", "parts"),
    [
        ("fedgh", "method", ("- uploads: prototype\n", "## Options", "```bibtex\n@inproceedings{yi2023")),
        ("dip", "attack", ("- budget: iterations=300", "**Threat model**", "## What it reaches")),
        ("clip", "defense", ("v <- v min(1, bound / ||v||_2)", "The `bound` is in units")),
        ("prototype", "kind of payload", ("- method trained where there is no run: fedgh", "- sent: every round")),
        ("plane", "data set", ("- where: drawn from the run's seed", "65.5 %")),
        ("htfe-4", "model", ("- is: cnn4, googlenet",)),
        ("fedre-table-2", "claim", ("`fedpriv reproduce fedre-table-2`",)),
    ],
)
def test_an_explanation_holds_the_facts_the_text_and_the_paper(name, kind, parts):
    explanation = fedpriv.explain(name)
    whole = explanation._repr_markdown_()
    assert whole.startswith(f"# {name} ({kind})\n")
    assert [part for part in parts if part not in whole] == []


@pytest.mark.parametrize(
    ("typed", "title"),
    [("batch labels known",) * 2, ("protocol only", "protocol"), ("few targets", "few clients"), ("Guard", "guard")],
)
def test_what_pages_and_tables_say_is_a_word(typed, title):
    assert fedpriv.explain(typed).name == title


def test_an_attack_that_an_endpoint_is_judged_by_names_the_endpoint():
    for attack, endpoint in {"membership": "membership", "property": "property", "labels": "label disclosure"}.items():
        assert fedpriv.explain(attack).facts["endpoint"] == find_word(endpoint).text
        assert f"`{attack}`" in find_word(endpoint).text


def test_a_member_by_reference_is_explained_under_its_own_name():
    assert fedpriv.explain("fedpriv.methods.fedre:FEDGH") == fedpriv.explain("fedgh")
    assert fedpriv.explain("fedpriv.defenses.entries:Clip").kind == "defenses"


def test_a_name_that_nothing_has_is_one_line(capsys):
    code, _, err = call(capsys, "explain", "fedgg")
    assert code == 2
    assert err.startswith("fedpriv: nothing is called 'fedgg'; did you mean 'fedgh' or ")
    assert err.endswith("? fedpriv list KIND lists what there is\n")
    with pytest.raises(fedpriv.UserError, match="expected a name"):
        fedpriv.explain(["fedgh"])
