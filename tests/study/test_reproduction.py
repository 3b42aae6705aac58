"""Claims put to the test: every one runs; cells, baselines and differences are what the runs say; work is not done twice."""

import tomllib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from looped import each
from markupsafe import escape

import fedpriv
from fedpriv.claims import claims, parsed
from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.datasets.types import as_unit
from fedpriv.eval.storage import read_record
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.reports.claim_card import lines_of
from fedpriv.study.claim_guesses import guessed
from fedpriv.study.claim_plan import LAST_ALONE, Asked, Plan, places, planned
from fedpriv.study.judging import Measured, PerUnit, StudyOutcome, card_of, difference, mean_of, over_clients, trained
from fedpriv.util.errors import UserError

OWN = """
quantity = "accuracy"
title = "Two methods"
paper = "A paper"
where = "table 1"
unit = "%"
digits = 1
tolerance = 2.0
tolerance_because = "it says so"
seeds = [0, 1]
known = ["Ten clients."]
unknown = ["The rest."]
measure = { what = "accuracy", every = 0.01 }
setting = { dataset = "digits", per_class = 20, partition = "iid", clients = 5, rounds = 2, auxiliary = 0.0, lr = 0.1 }
columns = [{ name = "digits", data = "Digits" }]
rows = [
  { name = "FedProto", method = "fedproto", values = [99.0] },
  { name = "Local", method = "local", values = [98.0] },
]
statements = [{ text = "Prototypes help.", better = "FedProto", least = 0.5 }]
"""
TRAINED = sorted(name for name, claim in claims().items() if not claim.counted)


@pytest.mark.parametrize("name", TRAINED)
def test_every_claim_can_be_put_to_the_test(name, tmp_path):
    result = fedpriv.reproduce(name, scale="smoke", out=tmp_path / "out")
    card, claim = read_record(tmp_path / "out" / "claim.json"), claims()[name]
    assert card == result.card
    assert len(card.cells) == len(claim.rows) * len(claim.columns)
    assert len(card.statements) == len(claim.statements)
    assert not card.left_out
    tried = [cell for cell in card.cells if cell.measured is not None]
    assert tried or all(cell.unit == "rounds" for cell in card.cells)
    assert all(np.isfinite(cell.measured.mean) for cell in tried)
    assert {card.verdict, *(item.verdict for item in (*tried, *card.statements))} <= {None, "pipeline check"}
    assert str(escape(claim.title)) in (tmp_path / "out" / "claim.html").read_text()
    assert all((tmp_path / "out" / grid).is_file() for grid in card.grids)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    home = tmp_path_factory.mktemp("own")
    (home / "mine.toml").write_text(OWN)
    return home, fedpriv.reproduce(home / "mine.toml", scale="paper", out=home / "out")


def test_a_claim_of_one_s_own_in_its_own_setting(own):
    home, result = own
    card = result.card
    assert (card.name, card.scale, card.seeds, card.changed) == ("mine", "paper", (0, 1), {})
    prototypes, local = card.cells
    runs = [RunDirectory(path) for path in (home / "out" / "study" / "runs").iterdir()]
    own_runs = [run for run in runs if run.config.method == "fedproto"]
    expected = [100 * run.summary.accuracy["after_training"].mean_over_clients for run in own_runs]
    assert prototypes.measured.mean == pytest.approx(float(np.mean(expected)))
    received = [100 * run.summary.accuracy["after_broadcast"].mean_over_clients for run in own_runs]
    assert prototypes.other_moment["after_broadcast"].mean == pytest.approx(float(np.mean(received)))
    assert card.statements[0].other_moment is not None
    assert "at the other moment of a round" in (home / "out" / "claim.html").read_text()
    assert len(runs) - len(own_runs) == prototypes.measured.n == 2, "the row of the claim stands for the clients alone"
    assert prototypes.baseline.mean == pytest.approx(local.measured.mean)
    assert prototypes.same_setting
    ((order,),) = [statement.orders for statement in card.statements]
    assert order.difference == pytest.approx(prototypes.measured.mean - local.measured.mean)
    assert (order.claimed, order.n) == (1.0, 5)


def test_clients_ahead_are_counted_one_by_one_against_the_other_rows(own):
    home, _ = own
    claim = parsed(tomllib.loads(OWN.replace('what = "accuracy"', 'what = "ahead"')), "own")
    outcome = StudyOutcome(home / "out" / "study", planned(claim, Asked("paper")).labels)
    first, second = ([outcome.runs[outcome.of(cell)[seed].run] for seed in (0, 1)] for cell in places(claim))
    for cell, mine, other in zip(places(claim), (first, second), (second, first), strict=True):
        counts = [[run.directory.rounds()[-1].clients["after_training"] for run in runs] for runs in (mine, other)]
        ahead = [a[0] / a[1] > b[0] / b[1] for pair in zip(*counts, strict=True) for a, b in zip(*pair, strict=True)]
        assert trained(claim, cell, outcome, "paper").mean.mean == pytest.approx(100 * sum(ahead) / 10)
    alone = replace(claim, rows=claim.rows[:1])
    assert "other rows" in trained(alone, places(alone)[0], outcome, "paper").why


def test_again_nothing_is_trained_and_another_claim_or_seed_is_refused_the_folder(own, monkeypatch):
    home, result = own
    monkeypatch.setattr("fedpriv.study.training.train_run", lambda *_, **__: 1 / 0)
    again = fedpriv.reproduce(home / "mine.toml", scale="paper", out=home / "out")
    assert again.card.model_copy(update={"seconds": result.card.seconds}) == result.card
    with pytest.raises(UserError, match="holds another claim"):
        fedpriv.reproduce("fedre-table-2", out=home / "out")
    with pytest.raises(UserError, match="holds another study"):
        fedpriv.reproduce(home / "mine.toml", scale="paper", seeds=(2,), out=home / "out")


def test_what_has_no_data_is_left_out_and_told(tmp_path):
    with pytest.raises(UserError, match="cifar"):
        planned(claims()["fedre-table-1"], Asked("cpu", data_dir=tmp_path))
    elsewhere = '}, { name = "elsewhere", data = "CIFAR-10", setting = { dataset = "cifar10" } }]'
    text = OWN.replace("}]", elsewhere, 1).replace(".0] }", ".0, 1] }")
    plan = planned(parsed(tomllib.loads(text), "own"), Asked("paper", data_dir=tmp_path))
    assert [place.column.name for place in plan.tried] == ["digits", "digits"]
    assert [line.partition(":")[0] for line in plan.left_out] == ["FedProto | elsewhere", "Local | elsewhere"]


def test_rounds_are_scored_where_a_claim_takes_them():
    claim = parsed(tomllib.loads(OWN), "own")
    for changed, every in (({}, LAST_ALONE), ({"when": "best"}, 1), ({"what": "rounds", "reach": 0.5}, 1)):
        plan = planned(replace(claim, measure=replace(claim.measure, **changed)), Asked("smoke"))
        assert plan.study["federation"]["evaluate_every"] == every


def test_names_that_a_claim_does_not_have():
    claim = claims()["fedre-table-1"]
    for asked, match in (
        (Asked("huge"), "unknown scale 'huge'"),
        (Asked("cpu", rows=("FedRee",)), "unknown row 'FedRee'; did you mean 'FedRE'"),
        (Asked("cpu", columns=("CIFAR",)), "unknown column 'CIFAR'"),
    ):
        with pytest.raises(UserError, match=match):
            planned(claim, asked)


def units(values, clients):
    return PerUnit(np.array(values, dtype=float), np.array(clients))


def test_means_and_differences_by_hand():
    one = {0: units([1, 3], [0, 1]), 1: units([3, 5], [0, 1])}
    other = {0: units([0, 2], [0, 1]), 1: units([2, 4], [0, 1])}
    found = mean_of(one)
    assert (found.mean, found.n) == (3.0, 2)
    assert found.ci95[1] - 3.0 == pytest.approx(12.706204736)  # t of one degree of freedom; 2 and 4 have an error of 1
    gap = difference(one, other, 0.0, below=False)
    assert (gap.mean, gap.n_clients) == (1.0, 2)
    assert difference(one, other, 0.0, below=True).mean == -1.0
    assert difference(one, {7: other[0]}, 0.0, below=False) is None
    assert mean_of({}) is over_clients({}) is None


def judged_by(name, advantages):
    """The card of a claim about inversion whose rows have such advantages over their own baselines."""
    claim, noise = claims()[name], np.random.default_rng(0)
    tried = tuple(place for place in places(claim) if place.column.name == "PSNR")
    gains = [{0: units(gain + noise.normal(0, 0.1, 10), range(10))} for gain in advantages]
    results = {place.name: Measured(mean_of(gain), compared=gain) for place, gain in zip(tried, gains, strict=True)}
    return card_of("x", claim, Asked("cpu"), Plan(tried, seeds=(0,)), results, command="fedpriv")


@each(
    "name, advantages, verdicts",
    [
        ("fedre-figure-4", (3, 2, 1), ["holds", "holds"]),
        ("fedre-figure-4", (-1, -2, -3), ["below the baseline", "below the baseline"]),
        ("fedre-figure-4", (1, 2, 1), ["not decided", "holds"]),
        ("fedral-table-5", (1, 1, 1, 1, 1, -1), ["holds"]),  # that the least leaks asks for no leak
    ],
)
def test_orders_of_reconstructions_go_by_advantage_over_each_row_s_own_baseline(name, advantages, verdicts):
    card = judged_by(name, advantages)
    assert [one.verdict for one in card.statements if one.orders and one.orders[0].n] == verdicts
    assert card.cells[0].advantage.mean == pytest.approx(advantages[0], abs=0.1)


def test_failed_seeds_are_shown_and_decide_nothing():
    claim = parsed(tomllib.loads(OWN), "own")
    tried, rng = places(claim), np.random.default_rng(0)

    def cell(mean, seeds):
        values = {seed: units(mean + rng.normal(0, 0.1, 5), range(5)) for seed in seeds}
        return Measured(mean_of(values), compared=values, failed={seed: "NaN" for seed in {0, 1, 2} - set(seeds)})

    def card(seeds):
        results = {tried[0].name: cell(99.0, seeds), tried[1].name: cell(60.0, (0, 1, 2))}
        return card_of("x", claim, Asked("paper"), Plan(tried, seeds=(0, 1, 2)), results, command="fedpriv")

    whole, partial = card((0, 1, 2)), card((2,))
    assert [item.statements[0].verdict for item in (whole, partial)] == ["holds", "not decided"]
    assert [item.cells[0].verdict for item in (whole, partial)] == ["holds", "not decided"]
    assert partial.cells[0].failed == ("seed 0: NaN", "seed 1: NaN")
    assert partial.statements[0].orders[0].difference is None
    assert "FedProto, digits, failed under 2 of 3 seeds" in partial.statements[0].why
    assert "failed: FedProto, digits: seed 0: NaN" in lines_of(partial)


def test_values_stand_beside_guesses_before_anything_is_run(tmp_path):
    lines = []
    listener = SimpleNamespace(say=lines.append)
    with pytest.raises(UserError, match="cifar100 not found"):
        fedpriv.reproduce("fedral-table-5", data_dir=tmp_path, out=tmp_path / "out", listener=listener)
    # 0.0730 of variance and a twelfth: 10 log10(1 / 0.1557) = 8.08
    assert "All printed values lie below uniform noise, 8.08 dB" in lines[1]


def test_guesses_are_measured_where_images_are_at_hand_and_bounded_where_nothing_is_known():
    claim = replace(claims()["fedral-table-5"], pixels=None)
    assert "mid-grey 6.02 dB" in guessed(claim, Asked("cpu"))[0]  # an error of a quarter, of black and white
    digits = replace(claim, setting={"dataset": "digits"}, columns=(replace(claim.columns[0], setting={}),))
    (first, *_) = guessed(digits, Asked("cpu"))
    images = as_unit(load_dataset("digits", SourceOptions(per_class=20)).samples.images)[1::2].double()
    grey = float((-10 * ((images - 0.5) ** 2).mean((1, 2, 3)).log10()).mean())
    assert f"mid-grey {grey:.2f} dB" in first


def test_naming_one_of_a_client_s_two_classes_is_right_for_about_half_and_what_prints_less_is_named():
    first, second = guessed(claims()["fedhenn-table-1"], Asked("cpu"))
    assert 45 < float(first.split(" to ")[1].split()[0]) < 60
    assert second.startswith("2 of 15 printed values")
    assert "FedAvg (44.29" in second


def test_attacks_on_no_chosen_row_are_left_out():
    plan = planned(claims()["fedral-table-5"], Asked("smoke", rows=("FedProto", "FedAPEN")))
    assert [attack["name"] for attack in plan.study["attacks"]] == ["dlg", "dip"]
