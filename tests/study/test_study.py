"""Studies are read, what is wrong is told with the path of its key, and grids become cells."""

import json
import tomllib
from pathlib import Path

import pytest
from command_line import call
from federations import DIGITS, QUICK_DATA
from study_cases import STUDY, TINY, load_study

from fedpriv.api.auditing import read_asked
from fedpriv.study.cells import Execution, lay_out
from fedpriv.study.folder import results
from fedpriv.study.written import parse_chain, parse_entry, split_entries
from fedpriv.util.errors import UserError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def attacked(values):
    """The cells of a study but for those that are only trained."""
    return [cell for cell in lay_out(load_study(values), Execution())[0] if cell.target is not None]


def test_entries_in_one_word():
    assert split_entries("a,noise:scale=0.1,kind=laplace,b+c:bound=1") == [
        "a",
        "noise:scale=0.1,kind=laplace",
        "b+c:bound=1",
    ]
    assert parse_entry("dip:iterations=10/20") == {"name": "dip", "iterations": [10, 20]}
    assert parse_entry("fedgh:server.epochs=2") == {"name": "fedgh", "server": {"epochs": 2}}
    for text in ("x:a=1,a=2", "x:a.b=1,a.b=2", "x:a=1,a.b=2", "x:a.b=1,a=2", "x:name=y"):
        with pytest.raises(UserError, match="is given twice"):
            parse_entry(text)
    assert parse_chain("clip:bound=1e+3+noise") == [{"name": "clip", "bound": 1000.0}, {"name": "noise"}]


def test_methods_that_differ_in_the_target_alone_share_a_run():
    methods = [{"name": "fedgen", "target": "classifier"}, "fedgen"]
    cells, _ = lay_out(load_study({"methods": methods} | tomllib.loads(TINY)), Execution())
    assert cells[0].name != cells[1].name
    assert cells[0].run == cells[1].run


def test_a_defense_that_changes_the_kind_of_upload_changes_the_target():
    cells = attacked({"methods": ["fedgh"], "defenses": ["none", "entangle"]} | tomllib.loads(TINY))
    assert [cell.target for cell in cells] == ["prototype", "entangled"]


def test_attacks_that_read_every_extractor_have_every_round_kept():
    values = {"methods": ["fedallrep", "fedre"], "attacks": ["all-rounds", "unmix"]}
    values |= {"federation": {**QUICK_DATA, "rounds": 3, "per_class": 20, "clients": 4, "keep": [2]}}
    assert {cell.method.label: cell.config.keep for cell in attacked(values)} == {"fedallrep": (1, 2, 3), "fedre": (2,)}


def test_flags_and_file_describe_the_same_study(tmp_path):
    text = STUDY.replace("[0.5]", "[0.5, 0.7]").replace("[3]", "[3, 4]")
    text += '[knowledge]\nbatch_norm = "none"\n[axes]\nwidth = [16, 32]\n'
    (tmp_path / "study.toml").write_text(text)
    written = load_study(tmp_path / "study.toml")
    flags = {"methods": ("fedproto,fedgh:label=gh",), "defenses": ("none,noise:scale=0.5/0.7",), "seeds": ("3,4",)}
    flags |= {"attacks": ("pixels:iterations=5,membership",), "targets": 4, **QUICK_DATA, "per_class": 20, "clients": 4}
    flags |= {"partition": "iid", "rounds": 2, "lr": 0.1, "knowledge": ("batch_norm=none",), "axes": ("width=16,32",)}
    flagged, _ = read_asked(None, flags)
    assert flagged == written
    over, _ = read_asked(tmp_path / "study.toml", {"seeds": ("7",), "rounds": 9})
    assert (over.settings["seeds"], over.federation["rounds"], over.federation["clients"]) == ([7], 9, 4)


def test_the_example_study_can_be_run():
    study = load_study(Path(__file__).parents[2] / "docs" / "study.toml")
    cells, notes = lay_out(study, Execution())
    assert (len(study.methods), len(study.defenses), len(study.attacks), notes) == (4, 2, 2, ())
    assert [len(cell.plans) for cell in cells] == [2] * 8 + [0]


def cells_of(text):
    return attacked(tomllib.loads(text) | tomllib.loads(TINY))


def test_axes_of_settings_and_lists_of_options_are_a_grid_with_names_of_its_own():
    cells = cells_of(
        """methods = ["fedproto", { name = "fedre", label = "mix", lr = 0.2, mechanism = ["VAP", "RAP"] }]
        defenses = [{ name = "noise", scale = [0.1, 1] }]
        attacks = [{ name = "dip", iterations = [5, 9] }, "membership"]
        seeds = [0, 3]
        axes.width = [16, 32]
        axes.mapping = ["ap", "mp"]
        """
    )
    assert len(cells) == len({cell.name for cell in cells}) == (1 + 2) * 2 * 2 * 2 * 2
    assert all(plan.seed == cell.seed == cell.config.seed for cell in cells for plan in cell.plans)
    assert cells[0].name == "fedproto-width=16-mapping=ap--noise-scale=0.1--s0"
    mixed = [cell for cell in cells if cell.method.name == "fedre"]
    assert {cell.method.label for cell in mixed} >= {"mix mechanism=VAP width=16 mapping=ap"}
    seen = {
        (c.config.options["mechanism"], c.config.width, c.config.mapping, c.config.defenses[0].options["scale"], c.seed)
        for c in mixed
    }
    assert len(seen) == 32
    assert all(c.method.varied["width"] == c.config.width and c.config.training.learning_rate == 0.2 for c in mixed)
    places = [path.removeprefix(f"attacks/{cells[0].name}/") for paths in results(cells[0]) for path in paths]
    assert places == ["iterations=5/dip", "iterations=9/dip", "membership"]
    assert [plan.attacks["dip"].iterations for plan in cells[0].plans[:2]] == [5, 9]


def test_a_method_that_sets_what_an_axis_varies_does_not_vary():
    cells = cells_of('methods = ["fedproto", { name = "fedgh", width = 8 }]\naxes.width = [16, 32]')
    assert [cell.config.width for cell in cells] == [16, 32, 8]
    assert [cell.method.label for cell in cells] == ["fedproto width=16", "fedproto width=32", "fedgh width=8"]


def alone(text):
    """Name, label and configuration of the runs of a study that are only trained."""
    cells, _ = lay_out(load_study(tomllib.loads(text) | tomllib.loads(TINY)), Execution())
    return [(cell.name, cell.method.label, cell.config) for cell in cells if not cell.plans]


def test_every_seed_and_setting_has_one_run_without_exchange():
    found = alone(
        """methods = ["fedproto", "fedgh", { name = "fedre", label = "mix", public = 20 }, { name = "fd", lr = 0.1 }]
        defenses = ["none", { name = "noise", scale = [0.1, 1] }]
        seeds = [0, 3]
        """
    )
    assert [(name, label, config.seed, config.public) for name, label, config in found] == [
        ("local--none--s0", "local", 0, 0),
        ("local--none--s3", "local", 3, 0),
        ("local-public=20--none--s0", "local public=20", 0, 20),
        ("local-public=20--none--s3", "local public=20", 3, 20),
    ]
    for _, _, config in found:
        assert (config.method, config.defenses, config.options, config.capture) == ("local", (), {}, "none")
        assert (config.rounds, config.clients, config.training.learning_rate) == (2, 4, 0.1)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ('methods = ["fedproto"]\nlocal = false', []),
        ('methods = ["fedproto", "local"]\ndefenses = ["none", "noise:scale=1"]', ["local"]),
        ('methods = [{ name = "local", label = "by themselves" }, "fedproto"]', ["by themselves"]),
        ('methods = ["fedproto", { name = "local", lr = 0.3 }]', ["local lr=0.3", "local"]),
        ('methods = ["fedproto", { name = "local", lr = 0.3 }]\nlocal = false', ["local lr=0.3"]),
    ],
)
def test_what_the_study_lists_is_not_added_and_nothing_is_where_it_says_so(text, labels):
    assert [label for _, label, _ in alone(text)] == labels


def test_one_model_is_chosen_where_a_method_needs_one_and_defenses_that_do_not_fit_are_left_out():
    values = {"methods": ["fedproto", "fedre", "fedavg"], "defenses": ["none", "hide-labels"], "attacks": "all"}
    cells, notes = lay_out(load_study(values | tomllib.loads(TINY)), Execution())
    assert {cell.config.models for cell in cells} == {"small-cnn"}
    assert [cell.name for cell in cells if cell.defense.choices] == ["fedre--hide-labels--s0"]
    assert len(cells) == 3 + 1 + 1
    assert notes[0] == "models: small-cnn for every client, since fedavg needs one architecture for all"
    assert [note.split(":")[:2] for note in notes if "under" in note] == [
        ["left out", f" {name} under hide-labels"] for name in ("fedproto", "fedavg")
    ]
    without = load_study({"methods": ["fedproto", "fedre"]})
    assert "models" not in without.federation


def test_iterations_and_targets_reach_every_attack_but_those_that_say_otherwise():
    flags = {"targets": 3, "iterations": 7, "rounds": 2, **QUICK_DATA, "per_class": 20, "clients": 4}
    named, _ = read_asked(None, {**flags, "methods": "fedgh", "attacks": "dip,pixels:iterations=9,membership"})
    every, _ = read_asked(None, {**flags, "methods": "fedavg"})
    for study, expected in ((named, {"dip": 7, "pixels": 9}), (every, None)):
        plans = [plan for cell in lay_out(study, Execution())[0] for plan in cell.plans]
        found = {name: getattr(made, made.budget) for plan in plans for name, made in plan.attacks.items()}
        assert {plan.n_targets for plan in plans} == {3}
        assert found == (expected or {"inverting-gradients": 7})


def test_quick_is_beneath_flags_and_over_a_file(capsys, tmp_path):
    (tmp_path / "study.toml").write_text("targets = 30\n[federation]\nrounds = 50\n")
    quick, _ = read_asked(tmp_path / "study.toml", {"quick": True, "targets": 9})
    assert (quick.federation["rounds"], quick.settings["targets"], quick.settings["iterations"]) == (3, 9, 20)
    code, _, err = call(capsys, "audit", "study.toml", "--quick", "--targets", "9", "--dry-run")
    assert (code, err) == (0, "quick: rounds 3, iterations 20\n")


def test_a_dry_run_counts_the_work_and_leaves_nothing(capsys, tmp_path):
    flags = ["--dataset", "digits", "--rounds", "3", "--clients", "4", "--participation", "0.5"]
    flags += ["--methods", "fedgh", "--attacks", "dip:iterations=10,membership", "--targets", "5", "--seeds", "0,1"]
    code, out, _ = call(capsys, "audit", *flags, "--dry-run", "--json")
    assert code == 0
    cells = json.loads(out)["cells"]
    assert [(cell["client_steps"], cell["attack_iterations"]) for cell in cells] == [(6, 2 * 5 * 10)] * 2 + [(6, 0)] * 2
    code, out, _ = call(capsys, "audit", *flags, "--dry-run")
    assert "4 cells: 24 client steps, at most 200 attack iterations" in out
    assert list(tmp_path.iterdir()) == []
    code, _, err = call(capsys, "audit", *flags, "--dataset", "folder", "--data-dir", "gone", "--dry-run")
    assert code == 2
    assert "image folder not found" in err


WRONG = [
    ('methods = [\n "fedproto",\n "fedxyz"]', "methods[1]: unknown method 'fedxyz'"),
    ('[[methods]]\nname = "fedgh"\n[methods.option]\nserver = { epoch = 1 }', "methods[0].server"),
    ('methods = [{ name = "fedgh", lr = -1 }]', "methods[0].lr: federation flags: training.learning_rate"),
    ('methods = ["fedproto", "fedproto"]', "methods[1]: method 'fedproto' is there twice"),
    ('methods = ["local"]', "methods[0]: local uploads nothing, so nothing would be attacked"),
    ('methods = ["fd", { name = "local", target = "logits" }]', "methods[1].target: local uploads nothing: it is trai"),
    ("local = 1", "local: input should be a valid boolean, got 1"),
    ('methods = ["fedavg"]\n[federation]\nclients = 4\nmodels = "small"', "methods[0]: method 'fedavg' needs one archit"),
    ('[[methods]]\nname = "fedgh"\ntarget = "model"', "methods[0].target: clients of 'fedgh' upload no 'model'"),
    ("\n\nmethods = []", "methods: an empty list"),
    ("sedes = [1]", "sedes: unknown key of a study: 'sedes'; did you mean 'seeds'"),
    ("seeds = [0,\n 1,\n 0]", "seeds[2]: 0 is listed twice"),
    ("targets = 0", "targets: input should be greater than or equal to 1, got 0"),
    ("[federation]\nlr = [0.1, 1]", "federation.lr: expected one value"),
    ('[federation]\ndataset = "mnst"', "federation.dataset: unknown data set 'mnst'"),
    ('defenses = ["none",\n{ name = "noise", scale = [] }]', "defenses[1].scale: an empty grid"),
    ('defenses = [\n{ name = "noise", scale = [0.1, -1] }]', "defenses[0].scale: options of defense noise: scale"),
    ('defenses = ["none", ["clip", { name = "noise", kind = "x" }]]', "defenses[1][1].kind: options"),
    ('methods = ["fedgh"]\ndefenses = [\n"hide-labels"]', "defenses[0]: defense 'hide-labels'"),
    ('attacks = ["dipp"]', "attacks[0]: unknown attack 'dipp'; did you mean 'dip'"),
    ('methods = ["fedgh"]\nattacks = ["dip",\n "dlg"]', "attacks[1]: attack 'dlg' is on"),
    ('attacks = [{ name = "dip", iterations = [3, 3] }]', "attacks[0].iterations[1]: 3 is listed twice"),
    ('methods = ["fedre"]\nattacks = ["unmix"]\n[federation]\nclients=4\nrounds = 1', "federation.rounds: 1: attack"),
    ('methods = ["fedgh"]\nattacks = ["dip"]\n[knowledge]\nextractor = "none"', "knowledge.extractor: attack"),
    ('[knowledge]\ntelepathy = "yes"', "knowledge.telepathy: knowledge: unknown key 'telepathy'"),
    ('methods = ["fedgh"]\n[knowledge]\nattacker_data = "same_domain"', "knowledge: attacker_data="),
    ("seeds = [", "not readable as TOML"),
    ('methods = ["fd"]\n[federation]\nclients = 4\nalpha = -1', "federation.alpha: "),
    ('[federation]\nclients = 4\nkeep = ["a"]', "federation.keep[0]: federation flags: keep.0: input should be"),
    ('[federation]\ndataset = "folder"\ndata_dir = "gone"', "federation.data_dir: image folder not found"),
    ("[federation]\nbatch-size = 1", "federation.batch-size: unknown setting of the federation: 'batch-size'; did you mean"),
    (
        '[[methods]]\nname = "fedre"\nmechanism = "VAP"\noption = { mechanism = "RAP" }',
        "methods[0].mechanism: set twice: here and in option.mechanism; drop one",
    ),
    ('defenses = ["noise:scale=1,scale=2"]', "defenses[0]: 'noise:scale=1,scale=2': 'scale' is given twice"),
    ("[axes]\nalpa = [0.1, 1]", "axes.alpa: unknown axis: 'alpa'; did you mean 'alpha'?"),
    ("[axes]\nalpha = 0.1", "axes.alpha: input should be a valid list, got 0.1"),
    ("[axes]\nalpha = [1, 1]", "axes.alpha[1]: 1 is listed twice"),
    ("federation.alpha = 1\n[axes]\nalpha = [1, 2]", "axes.alpha: alpha is set twice, here and in the federation"),
    ('attacks = [{ name = "dip", label = "mine" }]', "attacks[0].label: options of attack dip"),
]  # fmt: skip


def test_wrong_studies_are_refused_with_the_path_of_the_key(capsys, tmp_path):
    bad = []
    for text, complaint in WRONG:
        (tmp_path / "study.toml").write_text(text + "\n")
        data = () if "dataset" in text else DIGITS  # flags win over the file
        code, out, err = call(capsys, "audit", "study.toml", *data, "--per-class", "20")
        right = complaint in err and (code, out) == (2, "") and err.startswith("fedpriv: study.toml")
        if not right or err.count("\n") != 1 or [path.name for path in tmp_path.iterdir()] != ["study.toml"]:
            bad.append((text, complaint, err))
    assert bad == []


def test_wrong_flags_are_refused_by_their_name(capsys, tmp_path):
    for flags, complaint in (
        (
            ["--methods", "fedgh", "--defenses", "none,noise:scale=-1"],
            "study: defenses[1].scale: options of defense noise: scale",
        ),
        (["--defenses", "none,noise:=1"], "study: defenses[1]: 'noise:=1': expected NAME or NAME:KEY=VALUE"),
        (["--seeds", "0,x"], "seeds[1]: input should be a valid integer, got 'x'"),
        (["--rounds", "0"], "federation.rounds: federation flags: rounds: input should be greater"),
        (["--workers", "0"], "workers='0': expected auto or a whole number"),
        (["nowhere.toml"], "nowhere.toml: no such file"),
        (["--resume"], "resume needs out"),
        (["--resume", "--out", "x"], "x: no study here"),
        (["--resume", "--out", "x", "--methods", "fd"], "drop methods"),
    ):
        code, out, err = call(capsys, "audit", *flags)
        assert (code, out) == (2, ""), err
        assert complaint in err
        assert len(err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []
