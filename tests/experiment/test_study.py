"""Studies are read with the line of what is wrong, and expanded to cells."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_cases import STUDY, TINY

from fedpriv.cli.main import run
from fedpriv.cli.study_flags import source_of
from fedpriv.experiment.study.cells import Execution, lay_out
from fedpriv.experiment.study.definition import parse_study
from fedpriv.experiment.study.folder import described, results
from fedpriv.experiment.study.grammar import parse_chain, parse_entry, split_entries
from fedpriv.experiment.study.source import Source, read_source
from fedpriv.experiment.study.toml_lines import line_numbers
from fedpriv.util.errors import UserError


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def call(capsys, *arguments):
    code = run([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# ---------------------------------------------------------------- lines of TOML

KEYS = st.text("abz-_9", min_size=1, max_size=3)
VALUES = st.recursive(
    st.one_of(st.integers(), st.booleans(), st.text('x"#]}\n\\ ', max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)


def as_toml(value, spread):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, list):
        end = "\n" if spread else ""
        return (
            "["
            + "".join(f"{end} # note ]\n{as_toml(v, spread)}," if spread else f"{as_toml(v, spread)}," for v in value)
            + "]"
        )
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{k}" = {as_toml(v, spread)}' for k, v in value.items()) + "}"
    return str(value)


def all_keys(value, before=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*before, key)
        yield from all_keys(one, (*before, key))


@given(
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.lists(st.dictionaries(KEYS, VALUES, max_size=2), max_size=3),
    st.booleans(),
)
def test_every_key_has_a_line_and_nothing_else_does(top, tables, spread):
    text = "".join(f"{key} = {as_toml(value, False)}\n" for key, value in top.items())
    for table in tables:
        text += "# a comment with [brackets] and 'quotes'\n[[T]]\n"
        text += "".join(f"{key} = {as_toml(value, spread)}\n" for key, value in table.items())
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # a newer TOML than this one
        return
    assert set(line_numbers(text)) == set(all_keys(values))


def test_lines_of_tables_strings_and_dotted_keys():
    text = 'a = """x\n]"""\n[[m]]\nn = 1\n[m.sub]\n"p q".r = [1,\n  2]\n[[m]]\nn = { s = 2 }\n'
    text += "[ t . 'u' ]\nv = 07:32:00 # w = 1\n"
    lines = line_numbers(text)
    expected = {("a",): 1, ("m", 0): 3, ("m", 0, "n"): 4, ("m", 0, "sub"): 5, ("m", 0, "sub", "p q", "r"): 6}
    expected |= {("m", 0, "sub", "p q", "r", 1): 7, ("m", 1): 8, ("m", 1, "n", "s"): 9, ("t", "u", "v"): 11}
    assert {keys: lines[keys] for keys in expected} == expected
    assert set(lines) == set(all_keys(tomllib.loads(text)))


# ---------------------------------------------------------------- one-word entries and grids


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


@given(
    methods=st.lists(st.sampled_from(["fedproto", "fedgh", "fd"]), min_size=1, max_size=3, unique=True),
    scales=st.lists(st.sampled_from([0.1, 0.2, 0.4, 1]), min_size=1, max_size=4, unique=True),
    bounds=st.lists(st.sampled_from([1, 2.5, 10]), min_size=1, max_size=3, unique=True),
    seeds=st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
)
def test_a_grid_has_every_combination_once(methods, scales, bounds, seeds):
    chain = [{"name": "clip", "bound": bounds}, {"name": "noise", "scale": scales}]
    study = parse_study(Source({"methods": methods, "defenses": ["none", chain], "seeds": seeds}))
    labels = [entry.label for entry in study.defenses]
    assert len(set(labels)) == len(labels) == 1 + len(bounds) * len(scales)
    assert {entry.family for entry in study.defenses} == {"none", "clip + noise"}
    assert [len(entry.choices) for entry in study.defenses] == [0] + [2] * (len(labels) - 1)
    points = {(e.strength["clip.bound"], e.strength["noise.scale"]) for e in study.defenses if e.choices}
    assert points == {(bound, scale) for bound in bounds for scale in scales}


def test_cells_are_the_product_and_share_clients_by_seed():
    values = {"methods": ["fedproto", "fedgh"], "defenses": ["none", "noise:scale=0.1/1"], "seeds": [0, 5]}
    cells, _ = lay_out(parse_study(Source(values | {"federation": tomllib.loads(TINY)["federation"]})), Execution())
    assert len({cell.name for cell in cells}) == len(cells) == 2 * 3 * 2
    assert len({cell.division for cell in cells}) == 1
    assert all(plan.seed == cell.seed == cell.config.seed for cell in cells for plan in cell.plans)
    assert {cell.target for cell in cells} == {"prototype"}


def test_methods_that_differ_in_the_target_alone_share_a_run():
    methods = [{"name": "fedgen", "target": "classifier"}, "fedgen"]
    cells, _ = lay_out(parse_study(Source({"methods": methods} | tomllib.loads(TINY))), Execution())
    assert cells[0].name != cells[1].name
    assert cells[0].run == cells[1].run


def test_a_defense_that_changes_the_kind_of_upload_changes_the_target():
    values = {"methods": ["fedgh"], "defenses": ["none", "entangle"]} | tomllib.loads(TINY)
    cells, _ = lay_out(parse_study(Source(values)), Execution())
    assert [cell.target for cell in cells] == ["prototype", "entangled"]


def test_a_method_may_have_defenses_and_attacks_of_its_own():
    methods = ["fedgh", {"name": "fd", "defenses": ["count-floor"], "attacks": ["membership"]}]
    values = {"methods": methods, "defenses": ["entangle"], "attacks": ["dip"]} | tomllib.loads(TINY)
    cells, _ = lay_out(parse_study(Source(values)), Execution())
    assert [cell.defense.label for cell in cells] == ["entangle", "count-floor"]
    assert [place.rpartition("/")[2] for cell in cells for _, place, *_ in results(cell)] == ["dip", "membership"]


def test_stages_and_budgets_become_results_and_kept_rounds():
    values = {"methods": ["fedgh"], "attacks": [{"name": "dip", "budget": [20, 10]}, "membership"], "stages": ["early"]}
    values |= {"federation": {"rounds": 6, "per_class": 20, "clients": 4}}
    (cell,), _ = lay_out(parse_study(Source(values)), Execution())
    names = [place.rpartition("/")[2] for _, place, *_ in results(cell)]
    assert names == ["dip-early@10", "dip-early@20", "membership-early"]
    assert cell.config.keep == (1,)


def test_flags_and_file_describe_the_same_study(tmp_path):
    text = STUDY.replace("[0.5]", "[0.5, 0.7]").replace("[3]", "[3, 4]") + '[knowledge]\nbatch-norm = "none"\n'
    (tmp_path / "study.toml").write_text(text)
    written = parse_study(read_source(tmp_path / "study.toml"))
    flags = {"methods": ("fedproto,fedgh:label=gh",), "defenses": ("none,noise:scale=0.5/0.7",), "seeds": ("3,4",)}
    flags |= {"attacks": ("pixels:iterations=5,membership",), "targets": 4, "per_class": 20, "clients": 4}
    flags |= {"partition": "iid", "rounds": 2, "lr": 0.1, "knowledge": ("batch_norm=none",)}
    flagged = parse_study(source_of(None, flags, set(flags)))
    assert described(flagged) == described(written)
    assert flagged == written
    over = parse_study(source_of(tmp_path / "study.toml", {"seeds": ("7",), "rounds": 9}, {"seeds", "rounds"}))
    assert (over.seeds, over.federation["rounds"], over.federation["clients"]) == ((7,), 9, 4)


def test_the_example_study_can_be_run():
    study = parse_study(read_source(Path(__file__).parents[2] / "docs" / "study.toml"))
    cells, notes = lay_out(study, Execution())
    assert (len(study.methods), len(study.defenses), len(study.attacks), notes) == (4, 2, 2, ())
    assert len(cells) == 8
    assert all(len(cell.plans) == 2 for cell in cells)


# ---------------------------------------------------------------- what is refused, and on which line


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('methods = [\n "fedproto",\n "fedxyz"]', "3: methods[1]: unknown method 'fedxyz'"),
        ('[[methods]]\nname = "fedgh"\nspeed = 3', "3: methods[0].speed: unknown key of method fedgh: 'speed'"),
        ('[[methods]]\nname = "fedgh"\n[methods.option]\nserver = { epoch = 1 }', "4: methods[0].option.server"),
        ('methods = [{ name = "fedgh", lr = -1 }]', "1: methods[0].lr: federation flags: training.learning_rate"),
        ('methods = ["fedproto", "fedproto"]', "1: methods[1]: method 'fedproto' is there twice"),
        ('methods = ["local"]', "1: methods[0]: local uploads nothing"),
        ('methods = ["fedavg"]\n[federation]\nclients = 4', "1: methods[0]: method 'fedavg' needs one architecture"),
        ('methods = ["fedhenn-kernel"]', "1: methods[0]: method 'fedhenn-kernel' needs public images"),
        ('[[methods]]\nname = "fedgh"\ntarget = "model"', "3: methods[0].target: clients of 'fedgh' upload no 'model'"),
        ("\n\nmethods = []", "3: methods: an empty list"),
        ("sedes = [1]", "1: sedes: unknown key of a study: 'sedes'; did you mean 'seeds'"),
        ("seeds = [0,\n 1,\n 0]", "3: seeds[2]: seed 0 is listed twice"),
        ("seeds = [-1]", "1: seeds[0]: expected a whole number of at least 0"),
        ("targets = 0", "1: targets: expected a whole number of at least 1, got 0"),
        ("[federation]\n\nrounds = 0", "3: federation.rounds: federation flags: rounds: input should be greater"),
        ("[federation]\nround = 3", "2: federation.round: unknown setting of the federation: 'round'; did you mean"),
        ("[federation]\nlr = [0.1, 1]", "2: federation.lr: expected one value"),
        ("[federation]\nseed = 1", "2: federation.seed: not a setting of the federation; use seeds"),
        ("[federation]\nclients = 4\ncapture = \"none\"", "3: federation.capture: none: no upload would be stored"),
        ('[federation]\ndataset = "mnst"', "2: federation.dataset: unknown data set 'mnst'"),
        ('defenses = ["none",\n{ name = "noise", scale = [] }]', "2: defenses[1].scale: an empty grid"),
        ('defenses = [\n{ name = "noise", scale = [0.1, -1] }]', "2: defenses[0].scale: options of defense noise: scale"),
        ('defenses = ["nose"]', "1: defenses[0]: unknown defense 'nose'; did you mean 'noise'"),
        ('defenses = ["noise:scael=1"]', "1: defenses[0]: options of defense noise: unknown key 'scael'"),
        ('defenses = ["none", ["clip", { name = "noise", kind = "x" }]]', "1: defenses[1][1].kind: options"),
        ('methods = ["fedgh"]\ndefenses = ["none",\n"hide-labels"]', "3: defenses[1]: defense 'hide-labels'"),
        ('methods = ["fd"]\ndefenses = ["none",\n["clip", "sign"]]', "3: defenses[1]: defense 'sign'"),
        ('attacks = ["dipp"]', "1: attacks[0]: unknown attack 'dipp'; did you mean 'dip'"),
        ('methods = ["fedgh"]\nattacks = ["dip",\n "dlg"]', "3: attacks[1]: attack 'dlg' is on"),
        ('methods = [{ name = "fedgh", attacks = ["dlg"] }]', "1: methods[0].attacks[0]: attack 'dlg' is on"),
        ('attacks = [\n{ name = "dip", iteration = 3 }]', "2: attacks[0].iteration: unknown key of attack dip: 'iteration'"),
        ('attacks = [{ name = "dip", budget = [3, 3] }]', "1: attacks[0].budget: --budget 3,3: a value is given twice"),
        ('methods = ["fedre"]\nattacks = ["unmix"]\n[federation]\nclients=4\nrounds = 1', "5: federation.rounds: 1: attack"),
        ('methods = ["fedgh"]\nattacks = ["dip"]\n[knowledge]\nextractor = "none"', "4: knowledge.extractor: attack"),
        ('[knowledge]\ntelepathy = "yes"', "2: knowledge.telepathy: --knowledge: unknown key 'telepathy'"),
        ('methods = ["fedgh"]\n[knowledge]\nattacker_data = "same_domain"', "2: knowledge: attacker_data="),
        ("seeds = [", "not readable as TOML"),
        ('stages = ["late"]', "1: stages: unknown stage 'late'"),
        ("stages = 3", "1: stages: expected a list of stages, got 3"),
        ('methods = ["fd"]\n[federation]\nclients = 4\nalpha = -1', "4: federation.alpha: alpha is -1.0"),
        ("[federation]\nclients = 4\ntrain_fraction = 2", "3: federation.train_fraction: train fraction is 2.0"),
        ("[federation]\nclients = 4\npublic = 30000", "3: federation.public: number of public images is 30000"),
        ("[federation]\nrounds = 2\nclients = 3000", "3: federation.clients: 3000 clients cannot share"),
        ('[federation]\nclients = 4\nkeep = ["a"]', "3: federation.keep: federation flags: keep.0: input should be"),
        ("[federation]\nrounds = 20\nkeep = [20, 99]", "3: federation.keep: federation flags: keep: input should be"),
        ('[federation]\ndataset = "mnist"\ndata-dir = "gone"', "3: federation.data-dir: mnist not found"),
        ('[federation]\ndataset = "folder"\ndata_dir = "gone"', "3: federation.data_dir: image folder not found"),
        ("[federation]\nlr = inf", "2: federation.lr: federation flags: training.learning_rate: input should be a finite"),
        ("[federation]\nbatch-size = 1\nbatch_size = 2", "3: federation.batch_size: set twice"),
        ("rounds-seen = 1\nrounds_seen = 2", "2: rounds_seen: set twice: as rounds_seen and as rounds-seen"),
        ("seeds = [0,\n99999999999999999999]", "2: seeds[1]: expected a whole number of at least 0 and at most 4294967295"),
        ('methods = ["fedproto"]\nattacks = ["unmix"]', "2: attacks[0]: attack 'unmix' is on entangled"),
        ('methods = ["fedre",\n"fedproto"]\nattacks = ["unmix"]', "2: methods[1]: attack 'unmix' is on entangled"),
        (
            '[[methods]]\nname = "fedre"\nmechanism = "VAP"\noption = { mechanism = "RAP" }',
            "3: methods[0].mechanism: set twice: here and in option.mechanism; drop one",
        ),
        (
            'methods = ["lg-fedavg"]\nattacks = ["head-update",\n"property"]\n[federation]\nclients = 3',
            "3: attacks[1]: attack 'property' on lg-fedavg: nothing that the server sees says which classes",
        ),
        ('defenses = ["noise:scale=1,scale=2"]', "1: defenses[0]: 'noise:scale=1,scale=2': 'scale' is given twice"),
        ('defenses = [\n{ name = "noise", scale = [0.1, inf] }]', "2: defenses[0].scale: options of defense noise: scale"),
        ('attacks = [{ name = "dlg", stop_below = nan }]', "1: attacks[0].stop_below: options of attack dlg: stop_below"),
    ],
)  # fmt: skip
def test_wrong_studies_are_refused_with_key_and_line(text, complaint, capsys, tmp_path):
    (tmp_path / "study.toml").write_text(text + "\n")
    code, out, err = call(capsys, "audit", "study.toml", "--per-class", "20", "--dry-run")
    assert complaint in err, err
    assert (code, out) == (2, "")
    assert err.startswith("fedpriv: study.toml:")
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["study.toml"]


@pytest.mark.parametrize("attacks", ["property:known=others", "all"])
def test_property_inference_with_something_to_go_by_or_not_named_is_no_mistake(attacks, capsys):
    small = ["--methods", "lg-fedavg", "--per-class", "20", "--clients", "3", "--rounds", "1"]
    code, _, err = call(capsys, "audit", *small, "--attacks", attacks, "--dry-run", "--quiet")
    assert code == 0, err


def test_wrong_flags_are_refused_by_their_name(capsys, tmp_path):
    for flags, complaint in (
        (["--methods", "fedgh", "--defenses", "none,noise:scale=-1"], "--defenses: options of defense noise: scale"),
        (["--defenses", "none,noise:=1"], "--defenses: 'noise:=1': expected NAME or NAME:KEY=VALUE"),
        (["--seeds", "0,x"], "--seeds 0,x: expected whole numbers"),
        (["--rounds", "0"], "--rounds: federation flags: rounds: input should be greater"),
        (["--seed", "0"], "No such option"),
        (["--workers", "0"], "'--workers': 0 is not in the range"),
        (["nowhere.toml"], "nowhere.toml: no such file"),
        (["--resume"], "--resume needs --out"),
        (["--resume", "--out", "x"], "x: no study here"),
        (["--resume", "--out", "x", "--methods", "fd"], "drop --methods"),
    ):
        code, out, err = call(capsys, "audit", *flags)
        assert (code, out) == (2, ""), err
        assert complaint in err
        assert len(err.splitlines()) == 1
        assert list(tmp_path.iterdir()) == []
