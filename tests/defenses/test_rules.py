"""Each defense of uploads by hand."""

import math
from dataclasses import replace

import pytest
import torch
from compare import expect_close, expect_same
from defense_cases import CASES, LABELS, C, D, build, draw, mixture, same, send

from fedpriv.algebra.matrices import diagonal_blocks
from fedpriv.federation.defense import DefensePipeline, Sender
from fedpriv.uploads.ledger import entries
from fedpriv.uploads.payloads import AngleMatrix, Entangled, Model, Prototypes, Representations, get_payload

# ---------------------------------------------------------------- by hand


def rows_of(sent):
    return get_payload(sent, Prototypes).features


def test_clip_shortens_long_rows_and_leaves_short_ones():
    message = (Prototypes(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([0, 2])),)
    found = rows_of(send(build("clip:bound=2.5"), "prototype", message=message))
    expect_close(found, torch.tensor([[1.5, 2.0], [0.3, 0.4]]))


def test_clip_of_a_network_is_of_the_whole_update():
    upload, broadcast = CASES["model"]
    sent = get_payload(send(build("clip:bound=0.5"), "model"), Model).state
    before, own = broadcast[0].state, upload[0].state
    update = {name: sent[name] - before[name] for name in sent}
    assert math.sqrt(sum(float(v.square().sum()) for v in update.values())) == pytest.approx(0.5, rel=1e-5)
    ratio = torch.cat([(update[n] / (own[n] - before[n])).flatten() for n in sent])
    expect_close(ratio, ratio[0].expand_as(ratio), rtol=1e-3)
    assert same(send(build("clip:bound=1000"), "model"), upload)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("unit", ["rms", "absolute"])
def test_noise_has_the_scale_it_says_and_no_mean(kind, unit):
    values = 3 * torch.ones(100, 300)
    message = (Representations(values, torch.zeros(100, dtype=torch.int64)),)
    text = f"noise:scale=0.2,kind={kind},unit={unit}"
    noise = get_payload(send(build(text), "representation", message=message), Representations).features - values
    deviation = 0.6 if unit == "rms" else 0.2
    assert float(noise.std()) == pytest.approx(deviation, rel=0.03)
    assert abs(float(noise.mean())) < 0.02 * deviation
    kurtosis = float((noise / noise.std()).pow(4).mean())
    assert kurtosis == pytest.approx(3 if kind == "gaussian" else 6, rel=0.2)


def test_prune_keeps_the_largest_of_each_tensor_and_pays_for_places():
    message = (Prototypes(torch.tensor([[1.0, -5.0, 2.0, 0.0], [3.0, 0.5, -4.0, 0.1]]), torch.tensor([0, 2])),)
    defenses = build("prune:keep=0.375")
    sent = send(defenses, "prototype", message=message)
    assert rows_of(sent).tolist() == [[0, -5, 0, 0], [3, 0, -4, 0]]
    wire = {row.name: row for row in DefensePipeline(defenses).wire_entries(entries(sent, 1, 0, "upload"))}
    assert wire["prototype.features"].bytes == 3 * 4
    assert wire["prototype.features#places"].bytes == 1  # 8 bits say which of 8 entries: less than 3 places of 3 bits
    assert wire["prototype.classes"].bytes == 2 * 8
    large = [replace(entries(sent, 1, 0, "upload")[0], shape=(1000, 1000))]
    values, places = DefensePipeline(build("prune:keep=0.001")).wire_entries(large)
    assert (values.scalars, places.scalars, places.bytes) == (1000, 1000, 1000 * 20 // 8)


def test_quantise_has_few_levels_is_unbiased_and_keeps_zero():
    values = torch.tensor([[0.3, -1.0, 0.0, 0.77]]).repeat(20000, 1)
    message = (Representations(values, torch.zeros(20000, dtype=torch.int64)),)
    sent = get_payload(send(build("quantise:bits=3"), "representation", message=message), Representations).features
    levels = (sent * 3).round()
    expect_close(sent * 3, levels, atol=1e-6)
    assert set(levels.flatten().tolist()) <= {-3, -2, -1, 0, 1, 2, 3}
    expect_close(sent.mean(0), values[0], atol=0.01)
    assert bool((sent[:, 2] == 0).all())
    wire = DefensePipeline(build("quantise:bits=3")).wire_entries(entries((mixture(),), 1, 0, "upload"))
    assert sum(row.bytes for row in wire if "encoding" not in row.name) == 3 * D // 8 + 4


def test_sign_sends_one_magnitude_a_tensor():
    broadcast = (Model({"w": torch.tensor([1.0, 1.0, 1.0, 1.0])}),)
    upload = (Model({"w": torch.tensor([4.0, 0.0, 1.0, 3.0])}),)
    pipeline = DefensePipeline(build("sign"))
    sent = pipeline.upload(upload, Sender(1, 0, C, LABELS, broadcast), 0)
    assert get_payload(sent, Model).state["w"].tolist() == [3.0, -1.0, 1.0, 3.0]
    assert [row.bytes for row in pipeline.wire_entries(entries(sent, 1, 0, "upload"))] == [1, 4]


@pytest.mark.parametrize("mechanism", ["VAR", "VAP", "RAP", "RSP"])
def test_entangled_prototypes_equal_entangled_representations(mechanism):
    features = CASES["representation"][0][0].features
    means = torch.stack([features[c == LABELS].mean(0) for c in (0, 2, 3)])
    prototypes = (Prototypes(means, torch.tensor([0, 2, 3])),)
    text = f"entangle:mechanism={mechanism}"
    one = get_payload(send(build(text), "representation"), Entangled)
    other = get_payload(send(build(text), "prototype", message=prototypes), Entangled)
    expect_close(one.feature, other.feature, atol=1e-6)
    expect_close(one.label_encoding, other.label_encoding, atol=1e-6)
    assert float(other.label_encoding.sum()) == pytest.approx(1)


def test_fixed_weights_stay_and_resampled_ones_change():
    def encodings(text):
        return [
            get_payload(send(build(text), "prototype", round_=t), Entangled).label_encoding.tolist() for t in (1, 2, 5)
        ]

    assert len({str(w) for w in encodings("entangle:weights=fixed")}) == 1
    assert len({str(w) for w in encodings("entangle")}) == 3


def test_diagonal_blocks_of_a_matrix_and_of_rows():
    sent = get_payload(send(build("diagonal:blocks=4"), "angle-matrix"), AngleMatrix).blocks
    own = CASES["angle-matrix"][0][0].blocks
    expect_same(sent, torch.stack([block for pair in own for block in diagonal_blocks(pair, 2)]))
    seen = torch.zeros(D)
    for round_ in range(1, 5):
        row = get_payload(send(build("diagonal:blocks=4"), "entangled", round_=round_), Entangled).feature
        assert int((row != 0).sum()) == D // 4
        seen += row != 0
    assert bool((seen == 1).all())
    fixed = [
        get_payload(send(build("diagonal:blocks=4,schedule=fixed"), "entangled", round_=t), Entangled) for t in (1, 2)
    ]
    expect_same(fixed[0].feature, fixed[1].feature)
    wire = DefensePipeline(build("diagonal:blocks=4")).wire_entries(entries((mixture(),), 1, 0, "upload"))
    assert [row.scalars for row in wire] == [D // 4, C]


def test_count_floor_drops_rare_classes_and_then_everything():
    kept = get_payload(send(build("count-floor:least=2"), "prototype"), Prototypes)
    assert (kept.classes.tolist(), kept.counts.tolist()) == ([0, 2], [6, 2])
    expect_same(kept.features, CASES["prototype"][0][0].features[:2])
    assert (
        get_payload(send(build("count-floor:least=2"), "representation"), Representations).labels.tolist()
        == [0] * 6 + [2] * 2
    )
    assert send(build("count-floor:least=7"), "prototype") == ()
    assert send(build("count-floor:least=2"), "entangled") == ()  # class 3, of one image, has weight 0.2
    without = (Entangled(draw(D), torch.tensor([0.5, 0.0, 0.5, 0.0])),)
    assert same(send(build("count-floor:least=2"), "entangled", message=without), without)


def test_hidden_labels_are_one_class():
    hidden = get_payload(send(build("hide-labels"), "entangled"), Entangled)
    assert hidden.label_encoding.tolist() == [1, 0, 0, 0]
    expect_same(hidden.feature, mixture().feature)


def test_uploads_of_every_second_round():
    sent = [bool(send(build("upload-interval:k=2"), "prototype", round_=t)) for t in range(1, 7)]
    assert sent == [False, True] * 3
