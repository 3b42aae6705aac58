"""How far a leak reaches: settings of local work on the same clients, judged together, told in one finding."""

import csv
import shutil
from dataclasses import replace

import pytest
import torch
from command_line import call

import fedpriv
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.inference.property import PropertyInference
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pages.reach import Reached, first_beyond, furthest, reach_sentence
from fedpriv.pipeline.plan import AttackPlan, build_attacks
from fedpriv.pipeline.sweep import divisor, parse_reach, read_reach, sweep_plans, untaken
from fedpriv.scoring.storage import load_metrics
from fedpriv.util.errors import UserError

SMALL = {"dataset": "digits", "per_class": 80, "clients": 6, "models": "small-mlp", "workers": 1}
NAMES = ["linear-layer", "linear-layer-reach-4", "linear-layer-reach-epoch"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    out = tmp_path_factory.mktemp("reach") / "out"
    asked = {"attacks": "linear-layer", "reach": ["epoch", 1, 4], "attack_option": {"iterations": 200}}
    return fedpriv.attack(target="model", out=out, **asked, **SMALL)


# ---------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ("0", "reach='0': '0' is no setting; expected numbers of images of one step and epoch, such as 1,4,16,epoch"),
        ("1,epoch,1", "reach='1,epoch,1': a setting is named twice"),
        ("1,none", "'none' is no setting"),
        ("4x1", "'4x1' is no setting"),
        ("", "expected numbers of images"),
        ("99999", "'99999' is no setting"),
    ],
)
def test_a_bad_list_is_one_line(asked, complaint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, _, said = call(capsys, "attack", "--target", "model", "--reach", asked)
    assert code == 2
    assert complaint in said
    assert len(said.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "settings", "on_run", "complaint"),
    [
        ("model", {"local_steps": 2}, False, "reach='1,4' and local_steps exclude each other"),
        ("model", {"batch_size": 2}, False, "batch_size is that of an epoch, which is not among them"),
        ("model", {"rounds": 3}, False, "compares uploads that follow the same broadcast"),
        ("model", {"budget": "1,2"}, False, "reach and budget exclude each other"),
        ("model", {}, True, "the run is trained already"),
        ("prototype", {}, False, "applies to uploads of trained weights, and prototype is none"),
    ],
)
def test_what_excludes_a_reach_is_named(target, settings, on_run, complaint):
    with pytest.raises(UserError, match=complaint):
        read_reach(target, {"reach": "1,4"} | settings, on_run=on_run)
    assert read_reach(target, {"reach": "none"} | settings, on_run=on_run) == ()


def test_uploads_of_trained_weights_have_one_by_default_unless_their_local_work_is_given():
    kinds = ("model", "small-model", "low-rank-model", "extractor", "classifier", "angle-matrix")
    assert {tuple(one.name for one in read_reach(kind, {}, on_run=False)) for kind in kinds} == {
        ("1", "4", "16", "epoch")
    }
    assert read_reach("entangled", {}, on_run=False) == ()
    for own in (
        {"batch_size": 1},
        {"local_steps": 1},
        {"epochs": 2},
        {"rounds": 5},
        {"budget": "9"},
    ):
        assert read_reach("model", own, on_run=False) == ()
    assert read_reach("model", {}, on_run=True) == ()
    assert [one.name for one in read_reach("model", {"reach": "2,epoch", "batch_size": 5}, on_run=False)] == [
        "2",
        "epoch",
    ]


def test_settings_are_in_the_order_of_their_work():
    assert [one.name for one in parse_reach(["epoch", "16", 4])] == ["4", "16", "epoch"]
    words = ["one step on one image", "one step on 8 images", "an epoch of all of a client's images"]
    assert [one.words for one in parse_reach("1,8,epoch")] == words


def plan(*names):
    return AttackPlan("model", build_attacks(names, {}), ThreatModel(), device="cpu")


SERIES = parse_reach("1,4,16,epoch")


def test_budgets_are_shared_out_unless_somebody_names_them():
    whole = plan("dlg", "inverting-gradients", "gradient-dip")
    plans = sweep_plans(whole, SERIES, (), {})
    full = {name: getattr(made, made.budget) for name, made in whole.attacks.items()}
    for setting, own in zip(SERIES, plans, strict=True):
        for name, made in own.attacks.items():
            part = divisor(setting) * (4 if name == "gradient-dip" else 1)
            assert getattr(made, made.budget) == max(1, full[name] // part)
    assert [sorted(own.attacks) for own in plans] == [
        ["dlg", "gradient-dip", "inverting-gradients"],
        ["dlg", "inverting-gradients"],
        ["inverting-gradients"],
        ["inverting-gradients"],
    ]
    assert untaken(plans)[0].startswith("attack 'dlg' at 16 images, epoch: ")
    named = sweep_plans(whole, SERIES, tuple(whole.attacks), {"attack_option": ["dlg.outer_steps=100"]})
    assert untaken(named) == ()
    assert {own.attacks["dlg"].outer_steps for own in named} == {100}
    assert named[1].attacks["inverting-gradients"].iterations < full["inverting-gradients"]
    everywhere = sweep_plans(whole, SERIES, (), {"iterations": 7})
    assert {made for own in everywhere for made in own.attacks.values()} == set(whole.attacks.values())


def test_members_are_asked_for_at_both_ends_and_properties_at_the_last():
    whole = replace(plan("dlg"), inferences={"membership": MembershipInference(), "property": PropertyInference()})
    asked = [sorted(own.inferences) for own in sweep_plans(whole, SERIES, (), {})]
    assert asked == [["membership"], [], [], ["membership", "property"]]
    asked = [sorted(own.inferences) for own in sweep_plans(whole, SERIES, ("property",), {})]
    assert asked == [["membership", "property"], [], [], ["membership", "property"]]
    alone = sweep_plans(whole, SERIES[:1], (), {})
    assert sorted(alone[0].inferences) == ["membership", "property"]


def test_the_first_setting_lies_where_one_alone_would():
    plans = sweep_plans(plan("dlg"), SERIES[:2], ("dlg",), {})
    assert [own.results() for own in plans] == [["dlg"], ["dlg-reach-4"]]


# ---------------------------------------------------------------- what is found


def test_only_the_local_work_differs_between_the_settings(attacked):
    runs = [RunDirectory.open(attacked.path / name) for name in ("run", "run-reach-4", "run-reach-epoch")]
    work = [(run.config.training.batch_size, run.config.training.max_steps) for run in runs]
    assert work == [(1, 1), (4, 1), (10, None)]
    for run in runs[1:]:
        assert replace(run.config, training=runs[0].config.training) == runs[0].config
    first, *others = [run.message(run.broadcast_path(1))[0].state for run in runs]
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_records_say_which_setting_and_positive_control_one_image_leaks(attacked):
    assert list(attacked.records) == NAMES
    told = [record.reach for record in attacked.records.values()]
    assert [(one.setting, one.place, one.steps) for one in told] == [
        ("1", 0, 1),
        ("4", 1, 1),
        ("epoch", 2, told[2].steps),
    ]
    assert told[0].images == 1
    assert told[1].images == 4
    assert told[2].steps > 1
    assert {one.series for one in told} == {("1 image", "4 images", "epoch")}
    assert attacked.records["linear-layer"].metrics.psnr_db.mean > 90
    assert attacked.verdicts["linear-layer"].kind == "leaks"
    assert attacked.verdicts["linear-layer-reach-epoch"].kind in ("untested", "none")


def test_one_finding_names_the_last_that_leaks_and_the_first_that_does_not(attacked):
    (finding,) = attacked.findings
    assert finding.upload == "model uploads of fedavg"
    last, beyond = furthest(finding.reach), first_beyond(finding.reach)
    assert last is not None
    assert beyond == last + 1
    assert finding.short.startswith(f"The leak reaches {finding.reach[last].words}: ")
    assert f"At {finding.reach[beyond].words} none is shown: " in finding.short
    assert "leaks" in finding.kinds
    rows = {(row["reach"], row["attack"]): row for row in attacked.reach}
    assert [label for (label, _), row in rows.items() if row["last_that_leaks"]] == [finding.reach[last].label]
    assert [label for (label, _), row in rows.items() if row["first_beyond"]] == [finding.reach[beyond].label]


def test_page_tables_and_pictures_hold_the_curve(attacked, tmp_path):
    again = fedpriv.report(attacked.path, out=tmp_path / "again")
    assert attacked.findings[0].short[:60] in (again.path / "report.html").read_text()
    text = (again.path / "report.md").read_text()
    assert "## How far the leak reaches" in text
    with (again.path / "reach.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["reach"] for row in rows] == ["1 image", "4 images", "epoch"]
    for row, name in zip(rows, NAMES, strict=True):
        record = attacked.records[name]
        assert float(row["psnr_db"]) == pytest.approx(record.metrics.psnr_db.mean)
        assert float(row["shuffled_psnr_db"]) == pytest.approx(record.image_floors["shuffled"].psnr_db)
    with (again.path / "results.csv").open(newline="") as file:
        assert {row["reach"] for row in csv.DictReader(file)} == {"1 image", "4 images", "epoch"}
    assert len(list(again.path.glob("reach-*.svg"))) == 1


def test_what_is_missing_is_resumed_to_the_same_records_also_with_workers(attacked, tmp_path):
    copy = tmp_path / "out"
    shutil.copytree(attacked.path, copy)
    (copy / "report.html").unlink()
    for name in NAMES[1:]:
        shutil.rmtree(copy / name)
    asked = {"attacks": "linear-layer", "reach": "1,4,epoch", "attack_option": {"iterations": 200}, "resume": True}
    fedpriv.attack(target="model", out=copy, **asked, **SMALL | {"workers": 2})
    for name in NAMES:
        first, second = (load_metrics(folder / name).model_dump() for folder in (attacked.path, copy))
        assert {key: value for key, value in first.items() if key != "cost"} == {
            key: value for key, value in second.items() if key != "cost"
        }
    with pytest.raises(UserError, match=r"made with other flags \(.*reach.* differ\)"):
        fedpriv.attack(target="model", out=copy, **asked | {"reach": "1,4"}, **SMALL)


def test_negative_control_an_epoch_at_a_tiny_budget_claims_nothing(tmp_path):
    asked = {"attacks": "inverting-gradients", "reach": "epoch", "iterations": 2, "models": "lenet-sigmoid"}
    result = fedpriv.attack(target="model", out=tmp_path / "out", **SMALL | {"batch_size": 40} | asked)
    (verdict,) = result.verdicts.values()
    assert verdict.kind in ("untested", "none")
    (finding,) = result.findings
    assert finding.kinds == (verdict.kind,)
    assert finding.reach == ()  # of one setting there is no more to say than of a run that was asked for


# ---------------------------------------------------------------- sentences


def at(label, leaks, images="something stands."):
    return Reached(label, f"one step on {label}", images, leaks)


@pytest.mark.parametrize(
    ("leaking", "last", "beyond", "begins"),
    [
        (
            (True, True, False),
            1,
            2,
            "The leak reaches one step on 4: something stands. At one step on 16 none is shown: ",
        ),
        ((True, True, True), 2, None, "The leak reaches as far as was asked, one step on 16: "),
        (
            (False, False, False),
            None,
            0,
            "No leak is shown, from one step on 1 to one step on 16. At one step on 1 none",
        ),
        (
            (True, False, True),
            2,
            None,
            "The leak reaches as far as was asked, one step on 16 (at one step on 4 none is",
        ),
    ],
)
def test_the_sentence_names_both_ends(leaking, last, beyond, begins):
    series = [at(label, own) for label, own in zip(("1", "4", "16"), leaking, strict=True)]
    assert (furthest(series), first_beyond(series)) == (last, beyond)
    assert reach_sentence(series).startswith(begins)


def test_a_setting_that_no_attack_could_say_anything_of_is_named():
    series = (at("1", leaks=True), Reached("4 images", "4 images"))
    assert reach_sentence(series).endswith("At 4 images no attack that makes images gave a result.")
