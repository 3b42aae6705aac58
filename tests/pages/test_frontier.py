"""The frontier: hand-computed cases, pymoo as an oracle, and which results may be compared at all."""

import dataclasses

import numpy as np
import pytest
from eval_cases import ABOUT, but, result
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import DefensePipeline
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.run_directory import DefenseChoice, RunConfig
from fedpriv.pages.frontier import frontiers as all_frontiers
from fedpriv.pages.frontier import point_labels
from fedpriv.pages.frontier_plot import _Decibels, _Linear, describe, frontier_svg, panels
from fedpriv.pages.upload_size import upload_size
from fedpriv.scoring.judgement import judge
from fedpriv.scoring.pareto import hypervolume, nondominated
from fedpriv.scoring.records.made import Communication, Total, Traffic
from fedpriv.util.config import plain
from fedpriv.wire.ledger import Entry, count

few = st.integers(2, 3).flatmap(
    lambda k: st.integers(1, 12).flatmap(
        lambda n: arrays(np.float64, (n, k), elements=st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.7, 1.0, 1.2]))
    )
)


def frontiers(attacks):
    """Each attack judged by itself."""
    return all_frontiers(attacks, judge)


def test_what_is_undominated_by_hand():
    points = np.array([[1, 2], [2, 1], [2, 2], [1, 2], [3, 0]], dtype=float)
    assert nondominated(points).tolist() == [True, True, False, True, True]


@given(few)
def test_the_set_agrees_with_pymoo(points):
    sorting = pytest.importorskip("pymoo.util.nds.non_dominated_sorting")
    front = sorting.NonDominatedSorting().do(points, only_non_dominated_front=True)
    assert set(np.flatnonzero(nondominated(points))) == set(front.tolist())


def test_volumes_by_hand():
    assert hypervolume(np.array([[0.5, 0.5]]), (1, 1)) == pytest.approx(0.25)
    # Two boxes of 0.2 x 0.6 and 0.6 x 0.2 share 0.2 x 0.2.
    assert hypervolume(np.array([[0.8, 0.4], [0.4, 0.8]]), (1, 1)) == pytest.approx(0.12 + 0.12 - 0.04)
    assert hypervolume(np.array([[0.5, 0.5, 0.5], [0.5, 0.5, 0.9]]), (1, 1, 1)) == pytest.approx(0.125)
    assert hypervolume(np.array([[0.0, 2.0]]), (1, 1)) == 0
    assert hypervolume(np.zeros((0, 3)), (1, 1, 1)) == 0


@pytest.mark.parametrize("points", [np.zeros((2, 4)), np.zeros(3)])
def test_other_shapes_are_refused(points):
    with pytest.raises(ValueError, match="expected"):
        hypervolume(points, (1.0,) * points.shape[-1])


@given(few)
def test_the_volume_agrees_with_pymoo(points):
    indicator = pytest.importorskip("pymoo.indicators.hv")
    corner = np.ones(points.shape[1])
    expected = indicator.HV(ref_point=corner)(points)
    assert hypervolume(points, corner) == pytest.approx(float(expected), abs=1e-12)


@given(few)
def test_the_undominated_points_alone_hold_the_volume(points):
    corner = np.full(points.shape[1], 1.1)
    assert hypervolume(points[nondominated(points)], corner) == pytest.approx(hypervolume(points, corner))


# ---------------------------------------------------------------- points

QUANTISED = (DefenseChoice("quantise", {"bits": 4}),)


def test_a_point_is_the_strongest_attack_on_an_upload():
    (found,) = frontiers([result(gain=-2.0, attack="pixels"), result(gain=1.5), result("fedgh", 3.0, scalars=640)])
    first, second = found.points
    assert (first.label, first.attack, first.leakage.mean) == ("fedre", "dip", 1.5)
    assert (first.leakage.low, first.leakage.high) == (1.0, 2.0)
    assert second.scalars.mean == 640
    assert found.best == (True, False)


def test_a_failing_attack_is_no_better_than_a_guess():
    (found,) = frontiers([result("fedre", -4.0, scalars=50), result("fedgh", -1.0, scalars=40)])
    assert dict(zip((p.label for p in found.points), found.best, strict=True)) == {"fedgh": True, "fedre": False}


def test_one_step_is_never_compared_with_epochs():
    one_step = LocalTraining(max_steps=1, batch_size=1)
    found = frontiers(
        [result("fedavg", 40.0, target="model", training=one_step), result("fedavg", 0.1, target="model")]
    )
    assert sorted(frontier.task["local work"] for frontier in found) == ["", "one local step on one image a round"]


def test_cards_and_tasks_never_share_a_set():
    attacks = [result(), result("fedgh"), result("fedgh", rounds_seen=5), result(dataset="mnist"), result(clients=20)]
    found = frontiers(attacks)
    assert [len(one.points) for one in found] == [2, 1, 1, 1]
    assert [one.card.rounds_seen for one in found] == [1, 5, 1, 1]


def test_what_lies_within_the_spread_is_said_to():
    def settled(*attacks):
        (found,) = frontiers(attacks)
        return {p.label: (b, s) for p, b, s in zip(found.points, found.best, found.settled, strict=True)}["fedgh"]

    # Leakage 1.0 +- 0.5 against 1.2 and against 3.0; equal scalars and accuracy.
    assert settled(result(gain=1.0), result("fedgh", 1.2)) == (False, False)
    assert settled(result(gain=1.0), result("fedgh", 3.0)) == (False, True)
    # Both below zero: no order between them, whatever their intervals; accuracy of one seed settles nothing.
    assert settled(result(gain=-3.0), result("fedgh", -1.0)) == (True, True)
    assert settled(result(gain=-3.0, accuracy=0.95), result("fedgh", -1.0, accuracy=0.8)) == (False, False)
    assert settled(result(gain=-3.0, scalars=10), result("fedgh", -1.0, scalars=20)) == (False, True)
    # Less than 1 % of what is sent decides nothing.
    assert settled(result(gain=-3.0, scalars=22603), result("fedgh", -1.0, scalars=22611)) == (False, False)
    assert settled(result(gain=-3.0, scalars=1000), result("fedgh", -1.0, scalars=1020)) == (False, True)
    seeds = [result("fedgh", -1.0, accuracy=0.8, seed=s) for s in (0, 1)]
    assert settled(*(result(gain=-3.0, accuracy=0.95, seed=s) for s in (0, 1)), *seeds) == (False, True)


def test_seeds_of_an_upload_are_one_point():
    attacks = [result(gain=g, seed=s, accuracy=a) for s, (g, a) in enumerate([(1.0, 0.8), (2.0, 0.9), (3.0, 1.0)])]
    (found,) = frontiers([*attacks, result(gain=1.9, attack="weaker")])
    (point,) = found.points
    assert (point.attack, point.seeds, point.attacked) == ("dip", (0, 1, 2), 3)
    assert point.leakage.mean == 2.0
    assert point.leakage.sd == pytest.approx(1.0)
    assert (point.leakage.low, point.leakage.high) == (1.0, 3.0)
    assert point.accuracy.mean == pytest.approx(0.9)


def test_a_failed_seed_does_not_hide_the_strongest_attack():
    attacks = [result(gain=-1.0, seed=s, accuracy=0.8 + 0.1 * s) for s in (0, 1)]
    (found,) = frontiers([*attacks, result(gain=9.0, attack="joint", seed=1, accuracy=0.9)])
    (point,) = found.points
    assert (point.attack, point.leakage.mean, point.seeds, point.attacked) == ("joint", 9.0, (1,), 2)
    assert point.accuracy.mean == 0.9
    assert "strongest attack at 1 of 2 seeds" in describe(found)


def test_of_several_budgets_the_largest_stands():
    (found,) = frontiers([result(gain=2.0, budget=3), result(gain=-1.0, budget=60)])
    (point,) = found.points
    assert (point.attack, point.leakage.mean) == ("dip, budget 60", -1.0)


# ---------------------------------------------------------------- what is sent


def sent(choices, shape=(10, 64), clients=2):
    """What an attack's directory says of a round in which clients send one prototype matrix with its ids each."""
    matrix = Entry(1, 0, "upload", "prototype.features", shape, "float32", 4, in_paper_count=True)
    ids = Entry(1, 0, "upload", "prototype.classes", shape[:1], "int64", 8, in_paper_count=False)
    pipeline = DefensePipeline(build_defenses([parse_choice(choice) for choice in choices]))
    wire = [row for _ in range(clients) for row in pipeline.wire_entries([matrix, ids])]
    totals = count(wire)
    per_round = {kind: {f"{key}_per_round": value for key, value in plain(one).items()} for kind, one in totals.items()}
    return upload_size(
        but(
            ABOUT,
            run=RunConfig(dataset="digits", strangers=0, clients=clients),
            communication=Communication(
                **{kind: Traffic(**own, total=Total(**plain(totals[kind]))) for kind, own in per_round.items()}
            ),
        )
    )


def test_what_is_not_encoded_counts_as_scalars():
    assert sent([]).words == sent([]).scalars == 640 + 10


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("quantise:bits=4", 640 * 4 / 32 + 1 + 10),  # one scale, ten ids
        ("quantise:bits=2", 640 * 2 / 32 + 1 + 10),
        ("prune:keep=0.1", 64 + 640 / 32 + 10),  # 64 values, and a bit for each of 640 places
    ],
)
def test_encoders_count_by_their_bits(choice, words):
    size = sent([choice])
    assert size.words == words < sent([]).scalars
    assert size.bytes == 4 * (words - 10) + 8 * 10


def test_an_encoder_can_win():
    # As the encoder sends them: as many entries and eight scales, in four bits each.
    (found,) = frontiers([result("fedavg", scalars=22603), result("fedavg", scalars=22611, bits=4, defenses=QUANTISED)])
    assert [(p.defense, b) for p, b in zip(found.points, found.best, strict=True)] == [
        ("quantise bits=4", True),
        ("none", False),
    ]
    first = found.points[0]
    assert (first.scalars.mean, first.bytes.mean) == (pytest.approx(22611 / 8), pytest.approx(22611 / 2))
    assert found.settled == (True, True)


def test_what_another_card_gives_away_is_told():
    leak = result(gain=4.0, attack="unmix", rounds_seen=30)
    first, second = frontiers([result(gain=-4.0), leak])
    assert first.points[0].elsewhere == "gives away images to unmix with 30 rounds seen"
    assert second.points[0].elsewhere == ""


def test_results_without_accuracy_have_no_point():
    bare = result()
    bare = dataclasses.replace(bare, about=but(bare.about, run_accuracy={}))
    assert frontiers([bare]) == ()


def test_labels_tell_what_differs():
    noisy = result(defenses=(DefenseChoice("noise", {"scale": 0.3}),))
    abouts = [r.about for r in (result(width=32), result(width=64), noisy, result("fedgh"))]
    assert point_labels(abouts) == ["fedre (width 32)", "fedre (width 64)", "fedre + noise scale=0.3", "fedgh"]
    both = [r.about for r in (result(), result(target="entangled"))]
    assert point_labels(both) == ["fedre, prototype", "fedre, entangled"]
    assert ABOUT.defense == "none"


# ---------------------------------------------------------------- picture


def crowd(n):
    return [result(f"method-{i}", 0.5 + 0.01 * i, accuracy=0.8 + 0.001 * i, scalars=100 + i) for i in range(n)]


def test_the_picture_is_the_same_every_time_and_well_formed():
    from xml.etree import ElementTree

    found = frontiers([result(), result("fedgh", 3.0, scalars=640), result("fedgh", 3.0, rounds_seen=5)])
    picture = frontier_svg(found)
    assert picture == frontier_svg(found)
    ElementTree.fromstring(picture)
    assert "fedgh" in picture
    assert "prefers-color-scheme:dark" in picture


@given(low=st.floats(-30, 30), span=st.floats(1.0, 60))
def test_ticks_of_leakage_say_where_they_are(low, span):
    ticks = _Decibels(low, low + span, 0, 100).ticks()
    assert len(ticks) >= 3
    for value, text in ticks:
        assert float(text.replace("−", "-")) == pytest.approx(value, abs=1e-9)


@given(low=st.floats(-0.1, 0.9), span=st.floats(0.02, 1.1))
def test_ticks_of_accuracy_say_where_they_are(low, span):
    for value, text in _Linear(low, low + span, 0, 100).ticks():
        assert float(text.removesuffix(" %")) == pytest.approx(100 * value, abs=1e-9)
        assert 0 <= value <= 1 + 1e-9


def test_half_steps_are_written_in_full():
    assert [text for _, text in _Decibels(-8, 1, 0, 100).ticks()][:3] == ["−7.5", "−5.0", "−2.5"]
    assert "92.5 %" in [text for _, text in _Linear(0.9, 0.99, 0, 100).ticks()]


def test_the_dagger_is_explained_where_it_stands_only():
    alone = frontiers([result(gain=-4.0)])
    leak = result(gain=4.0, attack="unmix", rounds_seen=30)
    assert "†" not in frontier_svg(alone)
    assert frontier_svg(frontiers([result(gain=-4.0), leak])).count("†") > 1


@pytest.mark.parametrize("n", [1, 2, 7, 25])
def test_labels_do_not_overlap(n):
    (found,) = frontiers(crowd(n))
    for panel in panels(found):
        boxes = panel.label_boxes
        assert len(boxes) == n
        assert None not in boxes
        assert panel.numbered == (n > 8)
        for i, one in enumerate(boxes):
            assert one.left >= 0
            assert one.right <= panel.width
            for two in boxes[:i]:
                assert not one.overlaps(two)
