"""How far a leak reaches: settings of local work on the same clients, answered together, shown in one table."""

from dataclasses import replace

import pytest
import torch

import fedpriv
from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.inference.property import PropertyInference
from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.pipeline.plan import AttackPlan, build_attacks
from fedpriv.pipeline.sweep import divisor, parse_reach, read_reach, sweep_plans
from fedpriv.util.errors import UserError

SMALL = {"dataset": "digits", "per_class": 80, "clients": 6, "models": "small-mlp"}
NAMES = ["linear-layer", "linear-layer-reach-4", "linear-layer-reach-epoch"]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    out = tmp_path_factory.mktemp("reach") / "out"
    asked = {"attacks": "linear-layer", "reach": ["epoch", 1, 4], "attack_option": {"iterations": 200}}
    return fedpriv.attack(target="model", out=out, **asked, **SMALL)


@pytest.mark.parametrize(
    ("target", "settings", "on_run", "complaint"),
    [
        ("model", {"local_steps": 2}, False, "reach='1,4' and local_steps exclude each other"),
        ("model", {"batch_size": 2}, False, "batch_size is that of an epoch alone"),
        ("model", {"rounds": 3}, False, "compares uploads that follow the same broadcast"),
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
    first = {tuple(one.name for one in read_reach(kind, {}, on_run=False)) for kind in kinds}
    whole = {tuple(one.name for one in read_reach(kind, {"full": True}, on_run=False)) for kind in kinds}
    assert (first, whole) == ({("1", "epoch")}, {("1", "4", "16", "epoch")})
    assert read_reach("entangled", {}, on_run=False) == ()
    for own in ({"batch_size": 1}, {"local_steps": 1}, {"epochs": 2}, {"rounds": 5}):
        assert read_reach("model", own, on_run=False) == ()
    assert read_reach("model", {}, on_run=True) == ()
    assert [one.name for one in read_reach("model", {"reach": "2,epoch", "batch_size": 5}, on_run=False)] == [
        "2",
        "epoch",
    ]


def plan(*names):
    return AttackPlan("model", build_attacks(names, {}), ThreatModel(), device="cpu")


SERIES = parse_reach("1,4,16,epoch")


def test_budgets_are_shared_out_unless_somebody_names_them():
    whole = plan("dlg", "inverting-gradients", "linear-layer")
    plans = sweep_plans(whole, SERIES, (), {})
    full = {name: getattr(made, made.budget) for name, made in whole.attacks.items()}
    for setting, own in zip(SERIES, plans, strict=True):
        for name, made in own.attacks.items():
            part = divisor(setting) * (3 if name == "linear-layer" else 1)
            assert getattr(made, made.budget) == max(1, full[name] // part)
    assert [sorted(own.attacks) for own in plans] == [
        ["dlg", "inverting-gradients", "linear-layer"],
        ["dlg", "inverting-gradients"],
        ["inverting-gradients"],
        ["inverting-gradients"],
    ]
    named = sweep_plans(whole, SERIES, tuple(whole.attacks), {"attack_option": ["dlg.outer_steps=100"]})
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
    assert [(one.setting, one.label, one.images) for one in told[:2]] == [("1", "1 image", 1), ("4", "4 images", 4)]
    assert [one.steps for one in told[:2]] == [1, 1]
    assert (told[2].setting, told[2].steps > 1) == ("epoch", True)
    assert attacked.records["linear-layer"].metrics.psnr_db.mean > 90
    found = {
        one.reach.setting: one.verdict for one in attacked.answers if one.endpoint == "reconstruction" and one.attack
    }
    assert found["1"] == "leak"
    assert found["epoch"] != "leak"


def test_a_sweep_is_one_upload_with_a_row_a_setting(attacked):
    (upload,) = attacked.uploads
    assert list(upload.settings) == ["1 image", "4 images", "epoch"]
    assert [row.setting for row in upload.rows if row.endpoint == "reconstruction"] == list(upload.settings)
    page = (attacked.path / "report.md").read_text()
    assert all(f"| reconstruction, {setting} |" in page for setting in upload.settings)
    assert {row["reach"] for row in attacked.table()} == {"1 image", "4 images", "epoch"}


def test_negative_control_an_epoch_at_a_tiny_budget_claims_nothing(tmp_path):
    asked = {"attacks": "inverting-gradients", "reach": "epoch", "iterations": 2, "models": "lenet-sigmoid"}
    result = fedpriv.attack(target="model", out=tmp_path / "out", **SMALL | {"batch_size": 40} | asked)
    assert "leak" not in {one.verdict for one in result.answers}
    (upload,) = result.uploads
    assert list(upload.settings) == [""]  # of one setting there is no more to say than of a run that was asked for
