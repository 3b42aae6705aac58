"""What a client does to an upload before it leaves: one contract for all defenses, composition, refusals."""

import json

import torch
from compare import expect_close, expect_same
from defense_cases import CASES, LABELS, TABLE, UPLOAD_DEFENSES, build, fits, plan_for, same, send
from federations import CPU, DIGITS, small
from looped import each

from fedpriv.cli.main import run as command
from fedpriv.defenses import DEFENSES
from fedpriv.federation.defense import Defense, DefensePipeline
from fedpriv.federation.method import LocalTraining
from fedpriv.methods import METHODS
from fedpriv.sources.run import prepare
from fedpriv.uploads.ledger import count, entries
from fedpriv.uploads.payloads import SampleCount, get_payload

# ---------------------------------------------------------------- the contract


@each("name", sorted(DEFENSES))
def test_every_defense_says_what_it_guarantees_and_what_answers_it(name):
    defense = DEFENSES.load(name)
    assert issubclass(defense, Defense)
    assert defense.name == name
    assert defense.source
    assert defense.guarantee
    assert defense.answers or defense.unanswered
    assert defense.__doc__
    assert defense.__dataclass_params__.frozen


def test_the_table_holds_every_defense_of_uploads():
    assert set(UPLOAD_DEFENSES) <= set(DEFENSES)
    rest = {name for name in DEFENSES if name not in UPLOAD_DEFENSES}
    assert all(DEFENSES.load(name).upload is Defense.upload for name in rest)
    for name in UPLOAD_DEFENSES:
        assert any(fits(build(text), kind) for text, kind in TABLE if text.partition(":")[0] == name)


@each("text, kind", [(text, kind) for text, kind in TABLE if fits(build(text), kind)])
def test_contract(text, kind):
    defenses = build(text)
    upload, _ = CASES[kind]
    before = [value.clone() for message in CASES[kind] for p in message for value in p.tensors().values()]
    rows = LABELS.clone()
    sent = send(defenses, kind)
    after = [value for message in CASES[kind] for p in message for value in p.tensors().values()]
    for a, b in zip(before, after, strict=True):
        expect_same(a, b)
    expect_same(rows, LABELS)
    assert same(sent, send(defenses, kind)), "the same seed gives the same upload"
    wanted = DefensePipeline(defenses).after(plan_for(kind)).uploads
    assert {p.kind for p in sent} <= set(wanted)
    for payload in sent:
        payload.check()
        assert payload.non_finite() is None
    # Counts pass untouched; whatever another client does changes nothing here.
    send(defenses, kind, client=0)
    assert same(sent, send(defenses, kind))
    for mine in upload:
        if isinstance(mine, SampleCount) and sent:
            expect_same(get_payload(sent, SampleCount).count, mine.count)
    wire = DefensePipeline(defenses).wire_entries(entries(sent, 1, 0, "upload"))
    totals = count(wire)
    assert totals["full"]["upload_bytes"] == sum(row.bytes for row in wire)
    assert totals["full"]["upload_scalars"] >= totals["paper"]["upload_scalars"] >= 0
    plain = count(entries(upload, 1, 0, "upload"))["full"]["upload_bytes"]
    assert totals["full"]["upload_bytes"] <= plain + 8 * len(wire)
    record = DefensePipeline(defenses).privacy(plan_for(kind))
    assert json.loads(json.dumps(record)) == record
    for line in record:
        assert line["epsilon"] > 0
        assert "not_protected" in line


# ---------------------------------------------------------------- composition and refusals


@each(
    "text, words",
    [
        ("clip:bound=0", ("clip", "bound")),
        ("noise:scale=-1", ("noise", "scale")),
        ("noise:kind=cauchy", ("noise", "kind")),
        ("dp-noise:epsilon=-1", ("dp-noise", "epsilon")),
        ("dp-noise:epsilon=1,noise_multiplier=1", ("dp-noise", "noise_multiplier")),
        ("dp-noise:epsilon=1,delta=1", ("dp-noise", "delta")),
        ("prune:keep=1", ("prune", "keep")),
        ("quantise:bits=1", ("quantise", "bits")),
        ("quantise:bit=4", ("quantise", "bits")),
        ("sign:scale=1", ("sign", "scale")),
        ("entangle:mechanism=RAQ", ("entangle", "mechanism")),
        ("entangle:mechanism=RSR", ("entangle", "mechanism")),
        ("diagonal:blocks=3", ("diagonal", "blocks")),
        ("count-floor:least=1", ("count-floor", "least")),
        ("upload-interval:k=1", ("upload-interval", "k")),
        ("upload-interval:k=9", ("upload-interval", "k")),
        ("secure-aggregation", ("secure-aggregation", "fedgh")),
        ("sign", ("sign", "prototype")),
        ("noize", ("noize", "noise")),
    ],
)
def test_bad_strengths_leave_with_code_2_and_name_defense_and_key(text, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = [*DIGITS, "--per-class", "10", "--clients", "3", "--rounds", "2", "--partition", "iid"]
    assert command(["train", "--method", "fedgh", *flags, "--defense", text, "--out", "run"]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


@each("name", [name for name in METHODS if METHODS.load(name).linear_aggregation])
def test_additive_servers_learn_the_same_from_the_mean(name):
    """What secure aggregation may hide: the server's next broadcast is the same if everybody sends the mean."""
    from fedpriv.sources.source import mean_upload

    method = METHODS.load(name)
    config = small(
        name,
        per_class=10,
        clients=3,
        rounds=1,
        models="small-mlp",
        alpha=1.0,
        training=LocalTraining(learning_rate=0.01),
        public=20,
    )
    federation = prepare(config, CPU)
    server, broadcast = method.start(federation.server, torch.Generator().manual_seed(0))
    uploads = []
    for k, setup in enumerate(federation.clients):
        _, upload = method.client_step(setup, federation.initial_state(k), broadcast, federation.client_rng(1, k))
        uploads.append((k, upload))
    mean = mean_upload([upload for _, upload in uploads])
    results = []
    for sent in (uploads, [(0, mean)]):
        rng = torch.Generator().manual_seed(1)
        _, following = method.server_step(federation.server, dict(server), sent, rng)
        results.append([value for payload in following for value in payload.tensors().values()])
    for one, other in zip(*results, strict=True):
        expect_close(one, other, atol=1e-5)
