"""What ``import fedpriv`` offers: a frozen list of names, lazily, none hidden by a module; errors name arguments."""

import gc
import importlib
import inspect
import pkgutil
import subprocess
import sys

import pytest
from command_line import words
from federations import QUICK_DATA

import fedpriv
from fedpriv.cli.main import run as command

VERBS = words(
    "attack attack_uploads audit audit_dp catalogue check compare cost doctor explain guard load plan report reproduce "
    "score train"
)
PAYLOADS = words(
    "AngleMatrix ClassLogits Classifier Entangled Extractor Kernel LabelCounts LowRankModel Model Payload Prototypes "
    "Representations SampleCount SmallModel"
)
OTHERS = words(
    "AttackResult BatchFacts Catalogue Changes Check Diagnosis Explanation Gradient GuardResult Images Listener "
    "PrivacyAudit Report Reproduction Run StudyPlan StudyResult ThreatModel Traffic Update UserError"
)
SMALL = {**QUICK_DATA, "per_class": 20, "clients": 3, "partition": "iid", "rounds": 1}


@pytest.fixture(scope="module")
def trained():
    return fedpriv.train("fedgh", **SMALL)


@pytest.fixture(scope="module")
def attacked(trained):
    return fedpriv.attack(trained, target="prototype", attacks="pixels", targets=3, iterations=5)


def test_the_public_names_are_these():
    assert sorted(fedpriv.__all__) == sorted((*VERBS, *PAYLOADS, *OTHERS))
    assert set(fedpriv.__all__) <= set(dir(fedpriv))
    for name in fedpriv.__all__:
        found = getattr(fedpriv, name)
        assert found.__name__ == name
        assert inspect.getdoc(found), name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = fedpriv.trian


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, fedpriv; assert not {'torch', 'numpy', 'pydantic', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_hides_a_verb():
    for module in pkgutil.walk_packages(fedpriv.__path__, "fedpriv."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for verb in VERBS:
        assert inspect.isfunction(getattr(fedpriv, verb)), verb


def test_every_verb_is_typed_and_documented():
    for verb in VERBS:
        found = getattr(fedpriv, verb)
        assert "return" in found.__annotations__
        for name, parameter in inspect.signature(found).parameters.items():
            assert name in found.__annotations__, (verb, name)
            assert f"{name}:" in found.__doc__, (verb, name)
            assert parameter.kind is not parameter.VAR_POSITIONAL


# ---------------------------------------------------------------- results


def test_a_result_shows_and_keeps_itself(attacked, tmp_path):
    assert attacked.images().shape == (3, 1, 1, 8, 8)
    assert "(pixels; " in attacked.verdict
    assert "reconstruction" in repr(attacked)
    assert len(repr(attacked)) < 2000  # by its answers, not by its records
    assert len(attacked.verdict.splitlines()) == len({o.endpoint for o in attacked.answers if o.verdict != "not asked"})
    assert "data:image/png;base64," in attacked._repr_html_()
    assert len(attacked.figure("pixels").axes) > 3
    kept = attacked.save(tmp_path / "kept")
    assert (kept.path / "report.html").is_file()
    assert kept.images().equal(attacked.images())
    with pytest.raises(fedpriv.UserError, match="unknown attack of this result 'dip'; known: pixels"):
        attacked.load("dip")
    with pytest.raises(fedpriv.UserError, match=r"already exists; choose another out, or force"):
        attacked.save(tmp_path / "kept")


def test_a_frame_has_a_row_an_attack_or_says_what_is_missing(attacked, trained, monkeypatch):
    assert list(attacked.to_frame()["attack"]) == ["pixels"]
    assert list(trained.to_frame()["round"]) == [1]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fedpriv.UserError, match="needs pandas"):
        attacked.to_frame()


def test_a_catalogue_has_the_members_of_a_kind():
    found = fedpriv.catalogue("attacks", target="prototype")
    assert found.members["pixels"]["budget"].startswith("iterations=")
    assert len({row["does"] for row in fedpriv.catalogue("methods").members.values()}) >= 25
    assert fedpriv.catalogue("datasets").members["mnist"]["where"] == "data_dir, or download"
    with pytest.raises(fedpriv.UserError, match=r"unknown list 'metods'; did you mean 'methods'"):
        fedpriv.catalogue("metods")
    with pytest.raises(fedpriv.UserError, match="target='prototype': only goes with attacks"):
        fedpriv.catalogue("methods", target="prototype")


def test_a_study_is_planned_without_leaving_anything():
    small = {"methods": "fedgh", "attacks": "pixels:iterations=4", "targets": 2, "control": False}
    found = fedpriv.plan(**small, **SMALL)
    cell, alone = found.cells
    assert (alone["method"], alone["target"], alone["attacks"]) == ("local", None, ())
    assert (cell["method"], cell["target"], cell["attacks"]) == ("fedgh", "prototype", ("pixels",))
    # two targets, four starts and iterations each
    assert found.work == "2 cells: 6 client steps, at most 32 attack iterations"
    with pytest.raises(fedpriv.UserError, match="resume needs out"):
        fedpriv.plan(resume=True)


def test_temporary_results_and_the_run_trained_first_go_with_their_objects():
    result = fedpriv.attack(target="prototype", attacks="pixels", targets=2, iterations=2, control=False, **SMALL)
    run, path = result.run, result.path
    assert run.config.training.learning_rate == 0.1  # the quick setting
    del result
    gc.collect()
    assert run.summary.method == "fedgh"
    del run
    gc.collect()
    assert not path.exists()


def test_attacks_and_runs_are_reported_and_scored_together(attacked, trained, tmp_path):
    report = fedpriv.report([attacked, trained], out=tmp_path / "report")
    assert [page.name for page in report.pages] == ["report.html", "runs.html"]
    saved = attacked.save(tmp_path / "again")
    assert list(fedpriv.score(saved, seed=3)) == [saved.path / "pixels"]


def test_the_command_line_calls_the_same(attacked, trained, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["attack", "--run", trained.path, "--target", "prototype", "--attack", "pixels"]
    assert command([str(a) for a in (*arguments, "--targets", 3, "--iterations", 5, "--out", out, "--quiet")]) == 0
    by_command = fedpriv.AttackResult(out, attacked.records)
    assert by_command.images().equal(attacked.images())


def test_a_study_of_settings_alone(tmp_path):
    result = fedpriv.audit(
        methods=["fedgh"],
        attacks=[{"name": "pixels", "iterations": 2}],
        targets=2,
        control=False,
        local=False,
        federation=SMALL,
    )
    assert not result.failed
    assert result.failures == ()
    assert result.report.is_file()
    (row,) = result.rows
    assert (row.method, row.status, [entry.status for entry in row.attacks]) == ("fedgh", "done", ["done"])
    assert [place.name for place in result.results] == ["pixels"]
    found = result.to_frame()
    assert list(found["attack"]) == ["pixels"]
    assert {"cell", "method_label", "defense_label", "seed", "path", "status", "seconds"} <= set(found.columns)


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fedpriv.train("fedre", rouns=3), "unknown argument 'rouns'; did you mean 'rounds'"),
        (lambda: fedpriv.train(resume=True, out="x", rounds=3), "drop rounds"),
        (lambda: fedpriv.train(option="mechanism"), "option='mechanism': expected a mapping"),
        (lambda: fedpriv.train(lr=0), "^lr: .*input should be greater than 0, got 0"),
        (lambda: fedpriv.train(clients=0), "^clients: .*got 0"),
        (lambda: fedpriv.train(seed=-1), "^seed: .*got -1"),
        (lambda: fedpriv.train(rounds=3, keep=[9]), "^keep: .*from 1 to 3, got 9"),
        (lambda: fedpriv.attack(target="prototype", batch_size=0), "^batch_size: "),
        (lambda: fedpriv.train(alpha=-1), "^alpha: .*input should be greater than 0, got -1"),
        (lambda: fedpriv.attack(target="prototype", targets=2.5), "targets=2.5"),
        (
            lambda: fedpriv.attack(target="prototype", knowledge={"extractor": "shadow", "attacker_data": "none"}),
            r"knowledge extractor=shadow",
        ),
        (lambda: fedpriv.cost("fedgh", classes=10, alpha=1), "classes: alpha reads data"),
        (lambda: fedpriv.cost("fedgh", clusters=0), "clusters=0"),
        (lambda: fedpriv.score("nowhere"), "nowhere: no such folder"),
        (lambda: fedpriv.report([]), "expected at least one"),
        (lambda: fedpriv.audit(methods=["fedxyz"]), "fedxyz"),
        (lambda: fedpriv.audit(metods=["fedre"]), "unknown argument 'metods'"),
        (lambda: fedpriv.audit(resume=True), "resume needs out"),
    ],
)  # fmt: skip
def test_bad_input_names_the_argument(call, words):
    with pytest.raises(fedpriv.UserError, match=words) as caught:
        call()
    assert "--" not in str(caught.value).partition(";")[0]
    assert "\n" not in str(caught.value)
