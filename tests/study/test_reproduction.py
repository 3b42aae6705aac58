"""Claims put to the test: every one runs; cells, floors and differences are what the runs say; work is not done twice."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markupsafe import escape

import fedpriv
from fedpriv.claims import claims, find_claim, parsed
from fedpriv.eval.claims import ClaimCard
from fedpriv.eval.storage import read_record
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.study.claim_plan import (
    Asked,
    Plan,
    measure_of,
    places,
    planned,
    seeds_at,
    setting_at,
    study_at,
)
from fedpriv.study.judging import (
    Measured,
    PerUnit,
    card_of,
    difference,
    is_same_data,
    mean_of,
    over_clients,
)
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

[[rows]]
name = "FedProto"
method = "fedproto"
values = [99.0]

[[rows]]
name = "Local"
method = "local"
values = [98.0]

[[statements]]
text = "Prototypes help."
better = "FedProto"
least = 0.5
"""


@pytest.mark.parametrize("name", sorted(claims()))
def test_every_claim_can_be_put_to_the_test(name, tmp_path):
    found = fedpriv.reproduce(name, scale="smoke", out=tmp_path / "out")
    card = read_record(tmp_path / "out" / "claim.json")
    assert card == found.card
    assert isinstance(card, ClaimCard)
    claim = claims()[name]
    assert len(card.cells) == len(claim.rows) * len(claim.columns)
    assert len(card.statements) == len(claim.statements)
    assert not card.left_out
    tried = [cell for cell in card.cells if cell.measured is not None]
    reached = [cell for cell in tried if measure_of(claim, places(claim)[card.cells.index(cell)]).what != "rounds"]
    assert tried or all(measure_of(claim, place).what == "rounds" for place in places(claim))
    assert all(np.isfinite(cell.measured.mean) for cell in reached)
    if claim.counted:
        assert all(cell.verdict in (None, "holds") or cell.remark for cell in tried), "an unexplained count"
    else:
        assert {cell.verdict for cell in tried} <= {None, "cannot be told"}, "a few digits tell nothing"
        assert card.verdict == "cannot be told"
    page = (tmp_path / "out" / "claim.html").read_text()
    assert str(escape(claim.title)) in page
    assert all((tmp_path / "out" / grid).is_file() for grid in card.grids)


@pytest.mark.parametrize("name", sorted(name for name, claim in claims().items() if not claim.counted))
@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_every_setting_of_every_scale_is_one_that_a_study_takes(name, scale):
    from fedpriv.methods import METHODS
    from fedpriv.study.settings import run_config
    from fedpriv.util.config import parse

    claim = claims()[name]
    for place in places(claim):
        if place.method is None:
            continue
        setting = dict(setting_at(claim, place, scale))
        method = METHODS.load(place.method)
        parse(method.options, setting.pop("option", {}), f"options of {method.name}")
        run_config(place.method, setting, 0)
    assert seeds_at(claim, scale)
    if claim.quantity == "inversion":
        assert study_at(claim, scale)["attacks"]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    home = tmp_path_factory.mktemp("own")
    (home / "mine.toml").write_text(OWN)
    return home, fedpriv.reproduce(home / "mine.toml", scale="paper", out=home / "out")


def test_a_claim_of_one_s_own_in_its_own_setting(own):
    home, found = own
    card = found.card
    assert (card.name, card.scale, card.seeds, card.changed) == ("mine", "paper", (0, 1), {})
    prototypes, local = card.cells
    runs = {path.name: RunDirectory(path) for path in (home / "out" / "study" / "runs").iterdir()}
    own_runs = [run for run in runs.values() if run.config.method == "fedproto"]
    expected = [100 * run.summary.accuracy["after_training"].mean_over_clients for run in own_runs]
    assert prototypes.measured.mean == pytest.approx(float(np.mean(expected)))
    assert prototypes.measured.n == 2
    alone = [run for run in runs.values() if run.config.method == "local"]
    assert len(alone) == 2, "the row of the claim stands for the clients alone"
    assert prototypes.floor.mean == pytest.approx(local.measured.mean)
    assert prototypes.same_setting
    ((told,),) = [one.orders for one in card.statements]
    assert told.difference == pytest.approx(prototypes.measured.mean - local.measured.mean)
    assert (told.claimed, told.n) == (1.0, 5)


def test_again_nothing_is_trained(own, monkeypatch):
    home, found = own
    monkeypatch.setattr("fedpriv.study.training.train_run", lambda *_, **__: 1 / 0)
    again = fedpriv.reproduce(home / "mine.toml", scale="paper", out=home / "out")
    assert replace_times(again.card) == replace_times(found.card)


def replace_times(card):
    return card.model_copy(update={"seconds": 0.0})


def test_another_claim_or_seed_is_refused_the_folder(own):
    home, _ = own
    with pytest.raises(UserError, match="holds another claim"):
        fedpriv.reproduce("fedre-table-2", out=home / "out")
    with pytest.raises(UserError, match="holds another study"):
        fedpriv.reproduce(home / "mine.toml", scale="paper", seeds=(2,), out=home / "out")


def test_what_has_no_data_is_left_out_and_told(tmp_path):
    _, claim = find_claim("fedre-table-1")
    with pytest.raises(UserError, match="cifar"):
        planned(claim, Asked("cpu", data_dir=tmp_path))
    values = parsed(__import__("tomllib").loads(OWN), "own")
    two = replace(
        values,
        columns=(
            *values.columns,
            replace(values.columns[0], name="elsewhere", data="CIFAR-10", setting={"dataset": "cifar10"}),
        ),
        rows=tuple(replace(row, values=(*row.values, 1.0)) for row in values.rows),
    )
    plan = planned(two, Asked("paper", data_dir=tmp_path))
    assert [place.column.name for place in plan.tried] == ["digits", "digits"]
    assert [line.partition(":")[0] for line in plan.left_out] == ["FedProto | elsewhere", "Local | elsewhere"]


def test_names_that_a_claim_does_not_have():
    _, claim = find_claim("fedre-table-1")
    for asked, match in (
        (Asked("huge"), "unknown scale 'huge'"),
        (Asked("cpu", rows=("FedRee",)), "unknown row 'FedRee'; did you mean 'FedRE'"),
        (Asked("cpu", columns=("CIFAR",)), "unknown column 'CIFAR'"),
    ):
        with pytest.raises(UserError, match=match):
            planned(claim, asked)


# ---------------------------------------------------------------- figures by hand


def units(values, clients):
    return PerUnit(np.array(values, dtype=float), np.array(clients))


def test_means_and_differences_by_hand():
    one, other = (
        {0: units([1, 3], [0, 1]), 1: units([3, 5], [0, 1])},
        {0: units([0, 2], [0, 1]), 1: units([2, 4], [0, 1])},
    )
    found = mean_of(one)
    assert (found.mean, found.n) == (3.0, 2)
    assert found.ci95[1] - 3.0 == pytest.approx(12.706204736)  # t of one degree of freedom; 2 and 4 have an error of 1
    gap = difference(one, other, 0.0, below=False)
    assert (gap.mean, gap.n_clients) == (1.0, 2)
    assert difference(one, other, 0.0, below=True).mean == -1.0
    assert difference(one, {7: other[0]}, 0.0, below=False) is None
    assert mean_of({}) is over_clients({}) is None


@pytest.mark.parametrize(("guess", "verdict"), [(8.0, "holds"), (12.0, "below the floor")])
def test_an_order_of_reconstructions_that_a_guess_surpasses_tells_of_no_leak(guess, verdict):
    _, claim = find_claim("fedre-figure-4")
    noise = np.random.default_rng(0)

    def cell(mean):
        seeds = {0: PerUnit(mean + noise.normal(0, 0.1, 10), np.arange(10))}
        return Measured(over_clients(seeds), over_clients(guesses), "mean image", "", seeds, guesses)

    guesses = {0: PerUnit(guess + noise.normal(0, 0.1, 10), np.arange(10))}
    tried = tuple(place for place in places(claim) if place.column.name == "PSNR")
    found = {place.name: cell(mean) for place, mean in zip(tried, (11.0, 10.0, 9.0), strict=True)}
    card = card_of("x", claim, Asked("cpu"), Plan(tried, seeds=(0,)), found, command="fedpriv")
    assert [one.verdict for one in card.statements if one.orders and one.orders[0].n] == [verdict] * 2


def test_smaller_images_are_other_data():
    """A guess scores otherwise on images that were made smaller, so that no printed value may be held against it."""
    _, claim = find_claim("fedre-figure-4")
    place = places(claim)[0]
    assert not is_same_data(claim, place, Asked("cpu"))
    assert is_same_data(claim, place, Asked("paper"))
    assert not is_same_data(claim, place, Asked("paper", images={"TinyImageNet": Path()}))
