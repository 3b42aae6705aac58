"""Calibration: pages claim nothing where nothing leaks, leaks are as large as they say, and drawn truths are scored."""

from argparse import Namespace

import numpy as np
import pytest
from pages import CARDS, SCENARIOS, page_of, rows_of
from rates import Rate, counted, kept, table
from simulated import NULLS, inferred, inverted
from trained_attacks import CLASSES, RAW, Line, claims_of_page
from worlds import World

from fedpriv.util.errors import UserError


def pages(name, number):
    return [page_of(name, 0, page) for page in range(number)]


def test_pages_claim_nothing_of_nulls_and_exclude_no_least_effect():
    null, least = "nothing leaks, 5 clients", "least effect, 5 clients"
    made = {name: pages(name, 40) for name in (null, least)}
    said = {name: [{one.verdict for one in page["said"]} for page in of] for name, of in made.items()}
    # More than 5 of 40 pages would happen by chance once in 70 times at the rate of 5 % that is allowed.
    assert all(sum("leak" in page for page in of) <= 5 for of in said.values())
    assert sum("no leak detected" in page for page in said[least]) <= 5
    assert {one.endpoint for one in made[null][0]["said"]} == {
        "label disclosure",
        "property",
        "membership",
        "reconstruction",
    }
    assert made[null][0] == page_of(null, 0, 0)
    rows = rows_of(least, made[least])
    assert [row["allowed"] for row in rows] == ["at most 5", "at most 5", "at least 95", "at least 94"]
    assert float(rows[2]["measured"].split()[0]) > 92


def images(record):
    return [(one.mean, *one.ci95, one.p_value) for one in record.comparisons if one.measure == "images"]


def test_leaks_are_as_large_as_they_say():
    world = World(1, 40, look=0.05)
    gains = [one.psnr_db - one.floor_psnr_db for one in inverted(world, CARDS[1], 2.0).targets]
    assert np.mean(gains) == pytest.approx(2, abs=0.35)
    full, quick = (inverted(world, CARDS[1], 2.0, quick=quick) for quick in (False, True))
    assert np.allclose(images(full), images(quick), atol=1e-5)
    assert inverted(world, CARDS[1], NULLS[1]).advantage_db.mean < 0
    for primary in ("labels", "property", "membership"):
        for quick in (False, True):
            assert inferred(world, CARDS[0], primary, 0.2, quick=quick).auc.value == pytest.approx(0.7, abs=0.06)
    assert inferred(world, CARDS[0], "membership", 0.0, leaking=20).auc.value > 0.7


def test_worlds_differ_in_size_and_class_mix():
    sizes = World(0, long_tail=True).counts.sum(1)
    assert sizes.max() > 10 * sizes.min()
    assert (World(0, mixed=True).counts > 0).sum(1).mean() < (World(0).counts > 0).sum(1).mean()


def test_exploratory_attacks_change_no_primary():
    assert SCENARIOS["20 exploratory attacks"].exploratory == 20
    assert not any(page["changed"] for page in pages("20 exploratory attacks", 1))


def test_rates_and_tables_and_pages_that_are_kept(tmp_path):
    assert Rate(0, 1000).interval == (0, pytest.approx(0.00368, abs=1e-5))
    assert counted([True, False]) == Rate(1, 2)
    assert table([{"a": 1, "b": Rate(0, 2)}]) == "| a | b |\n| --- | --- |\n| 1 | 0.0 (0.0 to 84.2) |\n"
    first = kept(tmp_path, made_of, ["x"], Namespace(pages=2, seed=0, workers=1))
    assert first == {"x": [{"number": 0}, {"number": 1}]}
    (tmp_path / "pages.jsonl").write_text('[["x", 0, 0], {"number": 7}]\n')
    assert kept(tmp_path, made_of, ["x"], Namespace(pages=2, seed=0, workers=1)) == {
        "x": [{"number": 7}, {"number": 1}]
    }


def made_of(name, seed, number):
    return {"number": number}


def test_a_trained_attack_is_held_to_other_divisions_and_refused_on_other_uploads():
    settings = {"rounds": 1, "alpha": 1.0}
    line = Line.of("property:shadow_clients=4,steps=5", "representation", settings, {})
    assert claims_of_page(line, 1) == {CLASSES: False, RAW: True}
    with pytest.raises(UserError, match="not on kernel uploads"):
        Line.of("pixels", "kernel", {}, {})
