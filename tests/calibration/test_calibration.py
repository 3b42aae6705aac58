"""Calibration: nothing is claimed where nothing leaks, a leak is, and drawn truths are what is scored."""

import json
from dataclasses import replace

import pytest
import torch
from fedpriv.eval.judgement import judge
from interval_coverage import FAR_OFF, coverage, coverage_table, sizes
from rates import Rate, counted, table
from simulated import inverted
from simulated_pages import PAGE, false_claims, page_of, power
from trained_attacks import CLASSES, DATA_SET, IMAGES, LINES, RAW, claims_of_page, main, own_line
from worlds import World

from fedpriv.attacks.inference.property import PropertyInference
from fedpriv.util.errors import UserError


def test_pages_claim_nothing_of_nulls_and_find_what_leaks_beside_them():
    outcomes = [one for number in range(4) for one in page_of(0, number)]
    nulls = [one for one in outcomes if not one.leak]
    assert {one.attack for one in nulls} > {"same mean and covariance", "the class alone", "membership: noise", PAGE}
    # One false page of four would happen by chance once in 190 times at the rate of 5 % that is allowed.
    assert sum(bool(one.claims) for one in nulls if one.attack == PAGE) <= 1
    leaks = {(one.attack, one.unit): one for one in outcomes if one.leak}
    assert {unit for _, unit in leaks} == {"representation", "prototype"}
    assert "images" in leaks["truth", "representation"].claims
    assert "vectors" in leaks["truth", "prototype"].claims
    assert leaks["members, three", "representation"].claims
    assert f"| {PAGE} | all | 4 |" in false_claims(outcomes)
    assert "| truth + much noise | prototype | 2 |" in power(outcomes)
    assert outcomes[: len(page_of(0, 0))] == page_of(0, 0)


def test_a_world_holds_what_it_says_and_more_noise_is_found_less():
    for kind in ("representation", "prototype"):
        world = World(2, (2,) * 8, kind)
        assert len(world.targets) == 16
        for target, truth in zip(world.targets, world.truths, strict=True):
            upload = world.uploads[target.client].upload[0].features[target.index]
            assert torch.allclose(world.represent(truth.members).mean(0), upload, atol=1e-6)
            assert set(truth.labels.tolist()) == {target.label}
    found = [inverted(replace(world, kind="representation"), f"truth{noise}") for noise in ("", " + much noise")]
    assert found[0].advantage_db.mean > found[1].advantage_db.mean
    assert judge(found[0]).kind == "leaks"


def test_coverage_of_few_repetitions():
    found = coverage(40, 0, (6,))
    assert all(rates[6].trials == (4 if skewed else 40) for (_, skewed), rates in found.items())
    promised = [rates[6] for (what, _), rates in found.items() if what != FAR_OFF]
    assert sum(rate.hits for rate in promised) / sum(rate.trials for rate in promised) > 0.92
    assert "| mean | equal |" in coverage_table(found)
    assert sizes(4, skewed=True).tolist() == [10, 5, 3, 2]


def test_rates_and_tables():
    assert counted([True, False]) == Rate(1, 2)
    assert Rate(0, 1000).interval == (0, pytest.approx(0.00368, abs=1e-5))
    assert table([{"a": 1, "b": Rate(0, 2)}]) == "| a | b |\n| --- | --- |\n| 1 | 0.0 (0.0 to 84.2) |\n"
    assert table([]) == ""


def test_questions_about_classes_are_held_to_other_divisions():
    line = replace(
        own_line("property", "representation", ["rounds=1"], ()), attack=PropertyInference(shadow_clients=4, steps=5)
    )
    assert claims_of_page(line, 1) == {CLASSES: False, RAW: True}


def test_an_attack_of_one_s_own_is_written_as_in_a_study_and_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    assert len({line.name for line in LINES}) == len(LINES)
    line = own_line("pixels:iterations=7", "prototype", ["rounds=3", "clients=6"], ["extractor=none"])
    assert (line.attack.iterations, line.clients, line.settings) == (7, 6, {"rounds": 3})
    assert line.knowledge == {"extractor": "none"}
    with pytest.raises(UserError, match="not on kernel uploads"):
        own_line("pixels", "kernel", [], [])
    kept = {"line": "head-update on classifier", "seed": 0, "page": 0, "seconds": 1.0}
    kept["claims"] = {RAW: True, IMAGES: False, DATA_SET: False}
    (tmp_path / "pages.jsonl").write_text(json.dumps(kept) + "\n")
    arguments = ["--attack", "head-update", "--kind", "classifier", "--pages", "1", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["trained_attacks.py", *arguments])
    main()
    assert "| head-update | classifier | 0 of 1 | 0 of 1 |  | 1 of 1 |" in capsys.readouterr().out
