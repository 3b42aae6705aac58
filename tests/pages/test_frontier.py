"""The frontier: what betters what, by hand and by a property; one point an upload; what may be compared; the picture."""

import csv
import dataclasses
import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from eval_cases import ABOUT, asked, but, federated, result
from hypothesis import given
from hypothesis import strategies as st
from table_cases import told

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.federation.defense import DefensePipeline
from fedpriv.federation.method import LocalTraining
from fedpriv.federation.run_directory import DefenseChoice, RunConfig, RunDirectory
from fedpriv.federation.summary import Communication, ReachedAccuracy, Total, Traffic
from fedpriv.pages.alike import about_of, over_seeds
from fedpriv.pages.baselines import baselines, beside, gain_over_local, gain_words, same_clients
from fedpriv.pages.chart_axes import Decibels, Linear
from fedpriv.pages.columns import table_files
from fedpriv.pages.csv_table import frontier_rows
from fedpriv.pages.frontier import frontiers, point_labels
from fedpriv.pages.frontier_plot import WITHOUT_LOCAL, describe, frontier_svg, panels
from fedpriv.pages.upload_size import upload_size
from fedpriv.scoring.intervals import clustered, combine
from fedpriv.scoring.pareto import Effect, Objectives, betters, undominated
from fedpriv.scoring.records import JudgedComparison, Reason, Verdict
from fedpriv.util.config import plain
from fedpriv.wire.ledger import Entry, count


def effect(value=1.0, *, stands=False, tested=True, unit="prototype", low=None, high=None):
    return Effect("dip", value, low, high, stands, tested, unit)


LEAK, MORE, NONE, UNTESTED = effect(2.0, stands=True), effect(4.0, stands=True), effect(-1.0), effect(tested=False)
OUTRIGHT, OTHER = effect(None, stands=True), effect(3.0, stands=True, unit="entangled")


def objectives(found, cost=1.0, **more):
    return Objectives({} if found is None else {"images": found, **more}, {"error": cost})


@pytest.mark.parametrize(
    ("one", "two", "better"),
    [
        (NONE, LEAK, True),
        (LEAK, MORE, True),
        (MORE, LEAK, False),
        (LEAK, OUTRIGHT, True),
        (effect(-4.0), NONE, True),  # nothing is clipped at zero
        (effect(-4.0), UNTESTED, False),  # no better in what is known
        (UNTESTED, LEAK, False),
        (None, LEAK, False),
        (LEAK, OTHER, False),  # other targets: no order
        (OTHER, MORE, False),
        (effect(-1.0, unit="entangled"), LEAK, True),
    ],
)
def test_what_leaks_less(one, two, better):
    assert betters(objectives(one), objectives(two)) is better
    assert not betters(objectives(two), objectives(one)) or not better


def test_all_sorts_of_leakage_count_together():
    member = effect(0.2, stands=True, unit="")
    assert betters(objectives(NONE, membership=member), objectives(LEAK, membership=member))
    assert not betters(
        objectives(NONE, membership=member), objectives(LEAK, membership=effect(0.1, stands=True, unit=""))
    )
    assert not betters(objectives(NONE), objectives(LEAK, membership=member))  # not asked is not known
    assert betters(objectives(NONE, 0.5), objectives(NONE, 1.0))
    assert not betters(dataclasses.replace(objectives(NONE, 0.5), may_better=False), objectives(NONE, 1.0))
    assert undominated([objectives(NONE, 0.5), objectives(NONE, 1.0), objectives(LEAK, 0.1)]) == [True, False, True]


kinds = st.sampled_from([None, LEAK, MORE, NONE, UNTESTED, OUTRIGHT, OTHER, effect(-4.0)])
points = st.builds(
    lambda own, more, cost: objectives(own, cost, **({} if own is None or more is None else {"membership": more})),
    kinds,
    kinds,
    st.sampled_from([0.0, 1.0]),
)


@given(points, points, points)
def test_bettering_is_an_order(one, two, three):
    assert not betters(one, one)
    assert not (betters(one, two) and betters(two, one))
    if betters(one, two) and betters(two, three):
        assert betters(one, three)


# ---------------------------------------------------------------- points


def judged(measure="images", mean=1.0, *, stands=False, p_value=0.5):
    return JudgedComparison(
        **{"measure": measure, "stratum": "all", "against": "noise", "n": 20, "n_clients": 10, "least": 0.5},
        **{"mean": mean, "ci95": (mean - 0.5, mean + 0.5), "p_value": p_value},
        **{"value": mean, "adjusted": p_value, "stands": stands},
    )


LOOSE = (Reason(name="not_converged", value=0.1, beside=0.5),)


def page(*told, known=None):
    """Frontiers of results, each with its comparisons and the reasons against them."""
    results = {Path(str(place)): one for place, (one, *_) in enumerate(told)}
    verdicts = {}
    for folders in over_seeds(results):
        one, compared, reasons = told[int(str(folders[0]))]
        verdicts[folders] = verdict(about_of(one), compared, reasons)
    return frontiers(results, verdicts, known)


KINDS = {
    "images": "leaks",
    "identified": "some",
    "vectors": "vectors",
    "membership": "membership",
    "property": "property",
}


def verdict(about, compared, reasons=()):
    standing = [KINDS[one.measure] for one in compared if one.stands]
    kind = next(iter(standing), "untested" if reasons else "none")
    own = {
        "attack": about.attack,
        "target": about.target,
        "subject": "class prototypes",
        "kind": kind,
        "reasons": reasons,
    }
    counts = {"n_targets": 20, "n_clients": 10, "n_compared": 9, "n_seeds": 1, "converged": 1.0, "question": ""}
    fields = {**own, **counts, "compared": tuple(compared)}
    return Verdict(**{name: value for name, value in fields.items() if name in Verdict.model_fields})


def image(gain=1.0, stands=False, reasons=(), method="fedgh", **changed):
    """A result whose images gain so much."""
    return result(method, gain, **changed), (judged(mean=gain, stands=stands),), reasons


def member(gain=0.2, stands=True, method="fedgh", seed=0, **changed):
    """A record of membership inference on the same upload."""
    own = federated(method, seed)
    record = asked(
        run=own["run"], method=method, dataset=own["run"].dataset, upload=result(method).about.upload, **changed
    )
    return record, (judged("membership", gain, stands=stands),), ()


QUANTISED = (DefenseChoice("quantise", {"bits": 4}),)


def test_one_point_an_upload_with_the_gravest_of_all_its_attacks():
    vectors = (judged(mean=-5.0), judged("vectors", 0.3, stands=True))
    unmixed = (result("fedre", attack="unmix", target="entangled", rounds_seen=30), vectors, ())
    (found,) = page(image(9.0, method="fedre", target="entangled"), unmixed, member(method="fedre", target="entangled"))
    (point,) = found.points
    assert point.kind == "vectors"  # not that of the attack with the largest gain, which proves nothing
    assert found.measured == ("images", "representations", "membership")
    assert (point.effects["representations"].value, point.effects["representations"].attack) == (0.3, "unmix")
    assert point.effects["membership"].stands
    assert found.card.rounds_seen == 30


def test_of_attacks_on_different_targets_the_one_that_comes_nearest_to_a_claim_is_drawn():
    whole = (result("fedre", 9.0, target="entangled"), (judged(mean=9.0, p_value=0.4),), ())
    apart = (judged(mean=-2.0, p_value=0.01), judged("vectors", 0.1, p_value=0.9))
    (found,) = page(whole, (result("fedre", attack="unmix", target="entangled"), apart, ()))
    assert found.points[0].effects["images"].attack == "unmix"
    claimed = (judged(mean=-2.0, p_value=0.4), judged("identified", 0.4, stands=True))
    (found,) = page(image(9.0), (result("fedgh", attack="joint"), claimed, ()))
    point = found.points[0]
    assert (point.kind, point.effects["images"].attack, point.effects["images"].value) == ("some", "joint", -2.0)
    assert point.effects["images"].found == "leak"


def test_what_is_sent_one_by_one_needs_no_recovery():
    (found,) = page(image())
    assert found.points[0].effects["representations"].found == "outright"
    (found,) = page(image(defenses=NOISE))
    assert "representations" not in found.points[0].effects


def test_untested_points_are_never_better():
    cheap = image(-9.0, reasons=LOOSE, method="fedre", scalars=1, accuracy=0.99)
    (found,) = page(cheap, image(3.0, stands=True))
    assert {point.label: point.kind for point in found.points} == {"fedre": "untested", "fedgh": "leaks"}
    assert found.best == (True, True)
    assert next(p for p in found.points if p.label == "fedre").effects["images"].found == "untested"
    (found,) = page(image(-9.0, method="fedre", scalars=1, accuracy=0.99), image(3.0, stands=True))
    assert {p.label: b for p, b in zip(found.points, found.best, strict=True)} == {"fedre": True, "fedgh": False}
    assert found.settled == (True, True)


NOISE = (DefenseChoice("noise", {"scale": 0.3}),)


def test_a_point_whose_adapted_attack_was_not_run_betters_nothing():
    plainly = image(3.0, stands=True)
    (found,) = page(plainly, image(-3.0, defenses=NOISE, accuracy=0.99, scalars=1))
    noisy = next(p for p in found.points if p.defense != "none")
    assert noisy.unadapted == "average"
    assert found.best == (True, True)
    (found,) = page(
        plainly,
        image(-3.0, defenses=NOISE, accuracy=0.99, scalars=1),
        image(-2.0, defenses=NOISE, accuracy=0.99, scalars=1, attack="average", rounds_seen=5),
    )
    assert next(p for p in found.points if p.defense != "none").unadapted == ""
    assert "‡" in frontier_svg(page(plainly, image(-3.0, defenses=NOISE)))


def test_a_lost_broadcast_is_a_loss_and_the_gain_is_over_clients_that_exchange_nothing():
    def at(one, received):
        record, compared, reasons = one
        reached = record.about.run_accuracy
        worse = {"after_broadcast": but(reached["after_broadcast"], pooled=received)}
        return (
            dataclasses.replace(record, about=but(record.about, run_accuracy={**reached, **worse})),
            compared,
            reasons,
        )

    first, second = at(image(1.0, method="fedgh"), 0.9), at(image(1.0, method="fedre"), 0.2)
    (found,) = page(first, second)
    assert {p.label: b for p, b in zip(found.points, found.best, strict=True)} == {"fedgh": True, "fedre": False}
    (point, _) = found.points
    assert (point.local, found.locals) == (None, ())
    assert point.gains == {"after_training": None, "after_broadcast": None}
    assert WITHOUT_LOCAL[:30] in frontier_svg((found,))


def test_baselines_are_runs_of_the_same_clients_without_exchange():
    import fedpriv

    settings = {"dataset": "digits", "per_class": 12, "clients": 2, "partition": "iid", "rounds": 1, "epochs": 1}
    alone = [fedpriv.train("local", **settings, seed=seed) for seed in (0, 1)]
    federation = fedpriv.train("fedgh", **settings)
    known = baselines([run.path for run in (*alone, federation)])
    run = RunDirectory.open(federation.path)
    about = but(ABOUT, run=run.config, run_accuracy=run.summary.accuracy)
    for seed, reached in enumerate(
        run.summary.accuracy["after_training"] for run in map(RunDirectory.open, paths(alone))
    ):
        own = but(about, run=dataclasses.replace(run.config, seed=seed))
        assert beside(own, known) == reached
        assert sum(right for right, _ in reached.clients) / sum(total for _, total in reached.clients) == reached.pooled
    for changed in ({"rounds": 2}, {"seed": 2}, {"participation": 0.5}, {"dataset": "folder", "data_dir": "mine"}):
        assert beside(but(about, run=dataclasses.replace(run.config, **changed)), known) is None
    stored = dataclasses.replace(run.config, capture="last", keep=(1,), options={"x": 1}, defenses=NOISE)
    assert beside(but(about, run=stored), known) is not None


def paths(runs):
    return [run.path for run in runs]


def reached(*clients):
    """Accuracy with these test images of each client correct, of ten, twenty, and so on."""
    counts = tuple((right, 10 * place) for place, right in enumerate(clients, start=1))
    pooled = sum(clients) / sum(total for _, total in counts)
    return ReachedAccuracy(
        final=pooled, best=pooled, best_round=1, pooled=pooled, mean_over_clients=0.5, clients=counts
    )


TRAINED = {0: reached(9, 16, 24), 1: reached(8, 20, 27)}
RECEIVED = {0: reached(2, 5, 6), 1: reached(3, 5, 9)}
ALONE = {0: reached(5, 10, 24), 1: reached(6, 11, 12)}


def runs_of(seeds):
    accuracies = {seed: {"after_training": TRAINED[seed], "after_broadcast": RECEIVED[seed]} for seed in seeds}
    return [but(ABOUT, run=RunConfig(clients=3, seed=seed), run_accuracy=own) for seed, own in accuracies.items()]


KNOWN = {(same_clients(RunConfig(method="local", clients=3)), seed): own for seed, own in ALONE.items()}


def test_a_gain_is_beside_the_same_seed_and_over_clients_by_their_images():
    for seed in (0, 1):
        for moment, own in (("after_training", TRAINED), ("after_broadcast", RECEIVED)):
            found = gain_over_local(runs_of([seed]), moment, KNOWN)
            pairs = list(zip(own[seed].clients, ALONE[seed].clients, strict=True))
            values = [(right - alone) / total for (right, total), (alone, _) in pairs]
            by_hand = clustered(values, [0, 1, 2], weights=np.array([10.0, 20.0, 30.0]))
            assert found.mean == pytest.approx(own[seed].pooled - ALONE[seed].pooled) == pytest.approx(by_hand.mean)
            assert found.ci95 == pytest.approx(by_hand.interval())
    assert gain_over_local(runs_of([0]), "after_training", {}) is None
    assert gain_over_local(runs_of([0, 1]), "after_training", dict([next(iter(KNOWN.items()))])) is None


def test_gains_of_several_seeds_are_combined_seed_by_seed():
    each = [gain_over_local(runs_of([seed]), "after_training", KNOWN) for seed in (0, 1)]
    both = gain_over_local(runs_of([0, 1]), "after_training", KNOWN)
    assert both == combine(each)
    assert both.mean == pytest.approx((each[0].mean + each[1].mean) / 2)
    swapped = {(key, 1 - seed): own for (key, seed), own in KNOWN.items()}
    assert gain_over_local(runs_of([0]), "after_training", swapped).mean != pytest.approx(each[0].mean)


def test_clients_that_were_not_recorded_one_by_one_have_a_gain_without_an_interval():
    bare = {key: own.model_copy(update={"clients": ()}) for key, own in KNOWN.items()}
    (found, whole) = (gain_over_local(runs_of([0]), "after_training", known) for known in (bare, KNOWN))
    assert (found.mean, found.ci95) == (pytest.approx(whole.mean), None)
    assert gain_words(found) == "+16.7"


def test_one_step_is_never_compared_with_epochs():
    one_step = LocalTraining(max_steps=1, batch_size=1)
    found = page(image(40.0, target="model", training=one_step), image(0.1, target="model"))
    assert sorted(frontier.task["local work"] for frontier in found) == ["", "one local step on one image a round"]


def test_other_grants_and_tasks_never_share_a_set_and_rounds_are_taken_as_needed():
    found = page(
        image(), image(method="fedre"), image(method="fedre", rounds_seen=5, attack="unmix"), image(dataset="mnist")
    )
    assert [len(one.points) for one in found] == [2, 1]
    assert [one.card.rounds_seen for one in found] == [5, 1]
    (found, _) = page(image(), image(clients=20))
    assert len(found.points) == 1


def test_what_lies_within_the_spread_is_said_to():
    def settled(*told):
        (found,) = page(*told)
        return {p.label: (b, s) for p, b, s in zip(found.points, found.best, found.settled, strict=True)}["fedgh"]

    # Leakage 1.0 +- 0.5 against 1.2 and against 3.0; equal scalars and accuracy.
    assert settled(image(1.0, method="fedre"), image(1.2)) == (False, False)
    assert settled(image(1.0, method="fedre"), image(3.0)) == (False, True)
    assert settled(image(-3.0, method="fedre"), image(-1.0)) == (False, True)
    # Accuracy of one seed settles nothing, nor does less than 1 % of what is sent.
    assert settled(image(-1.0, method="fedre", accuracy=0.95), image(-1.0, accuracy=0.8)) == (False, False)
    assert settled(image(-1.0, method="fedre", scalars=22603), image(-1.0, scalars=22611)) == (False, False)
    assert settled(image(-1.0, method="fedre", scalars=1000), image(-1.0, scalars=1020)) == (False, True)


def test_seeds_of_an_upload_are_one_point():
    (found,) = page(*(image(1.0, seed=seed, accuracy=a) for seed, a in enumerate([0.8, 0.9, 1.0])))
    (point,) = found.points
    assert point.seeds == (0, 1, 2)
    assert point.trained.mean == pytest.approx(0.9)
    assert point.trained.ends == (0.8, 1.0)


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
            run=RunConfig(clients=clients),
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
    (found,) = page(
        image(method="fedavg", scalars=22603),
        image(method="fedavg", scalars=22611, bits=4, defenses=QUANTISED),
    )
    first = next(p for p in found.points if p.defense != "none")
    assert (first.scalars.mean, first.bytes.mean) == (pytest.approx(22611 / 8), pytest.approx(22611 / 2))


def test_what_another_card_gives_away_is_told():
    leak, compared, _ = image(4.0, stands=True, attack="joint")
    card = dataclasses.replace(leak.about.knowledge, labels="inferred")
    other = dataclasses.replace(leak, about=but(leak.about, knowledge=card))
    first, second = page(image(-4.0), (other, compared, ()))
    assert first.points[0].elsewhere == "images leak under another card, to joint"
    assert second.points[0].elsewhere == ""
    assert "†" in frontier_svg((first,))


def test_results_without_accuracy_have_no_point():
    bare, compared, _ = image()
    bare = dataclasses.replace(bare, about=but(bare.about, run_accuracy={}))
    assert page((bare, compared, ())) == ()
    assert page(member()) == ()


def test_labels_tell_what_differs():
    noisy = result(defenses=(DefenseChoice("noise", {"scale": 0.3}),))
    abouts = [r.about for r in (result(width=32), result(width=64), noisy, result("fedgh"))]
    assert point_labels(abouts) == ["fedre (width 32)", "fedre (width 64)", "fedre + noise scale=0.3", "fedgh"]
    both = [r.about for r in (result(), result(target="entangled"))]
    assert point_labels(both) == ["fedre, prototype", "fedre, entangled"]
    assert ABOUT.defense == "none"


# ---------------------------------------------------------------- picture


def crowd(n):
    return page(
        *(image(0.5 + 0.01 * i, method=f"method-{i}", accuracy=0.8 + 0.001 * i, scalars=100 + i) for i in range(n))
    )


def test_the_picture_is_the_same_every_time_and_well_formed():
    found = page(image(), image(3.0, method="fedre", scalars=640), member())
    picture = frontier_svg(found)
    assert picture == frontier_svg(found)
    ElementTree.fromstring(picture)
    assert [panel.title for panel in panels(found[0])] == ["Images", "Membership", "Communication"]
    assert "prefers-color-scheme:dark" in picture
    assert "not run" not in describe(found[0])


def test_the_table_has_a_line_for_each_point():
    found = page(image(2.0, stands=True), image(-3.0, method="fedre", reasons=LOOSE), member(0.1))
    text = table_files("frontier.csv", frontier_rows(found))["frontier.csv"]
    rows = {row["upload"]: row for row in csv.DictReader(io.StringIO(text))}
    assert (rows["fedgh"]["images"], rows["fedgh"]["images_found"], rows["fedgh"]["membership"]) == (
        "2.0",
        "leak",
        "0.1",
    )
    assert (rows["fedre"]["verdict_kind"], rows["fedre"]["images_found"]) == ("untested", "untested")
    assert rows["fedre"]["accuracy_after_broadcast"] == "0.9"


@given(low=st.floats(-30, 30), span=st.floats(1.0, 60))
def test_ticks_of_leakage_say_where_they_are(low, span):
    ticks = Decibels(low, low + span, 0, 100).ticks()
    assert len(ticks) >= 3
    for value, text in ticks:
        assert float(text.replace("−", "-")) == pytest.approx(value, abs=1e-9)


@given(low=st.floats(-0.1, 0.9), span=st.floats(0.02, 1.1))
def test_ticks_of_accuracy_say_where_they_are(low, span):
    for value, text in Linear(low, low + span, 0, 100).ticks():
        assert float(text.removesuffix(" %")) == pytest.approx(100 * value, abs=1e-9)
        assert 0 <= value <= 1 + 1e-9


def test_half_steps_are_written_in_full():
    assert [text for _, text in Decibels(-8, 1, 0, 100).ticks()][:3] == ["−7.5", "−5.0", "−2.5"]
    assert "92.5 %" in [text for _, text in Linear(0.9, 0.99, 0, 100).ticks()]


@pytest.mark.parametrize("n", [1, 2, 7, 25])
def test_labels_do_not_overlap(n):
    (found,) = crowd(n)
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


def test_noise_three_times_the_signal_is_visibly_dear(tmp_path):
    import fedpriv

    settings = {
        "dataset": "digits",
        "per_class": 60,
        "clients": 6,
        "partition": "iid",
        "models": "small-cnn",
        "seed": 0,
    }
    settings |= {"rounds": 6, "epochs": 2, "lr": 0.2, "strangers": 0.2}
    runs = [fedpriv.train("fedavg", **settings, defense=defense) for defense in ([], ["noise:scale=3"])]
    alone = fedpriv.train("local", **settings)
    quick = {
        "target": "model",
        "attacks": "linear-layer",
        "iterations": 1,
        "restarts": 1,
        "targets": 5,
        "control": False,
    }
    attacks = [fedpriv.attack(run, **quick) for run in runs]
    page = fedpriv.report([*attacks, alone], out=tmp_path / "page").path
    rows = told(page / "frontier.csv")
    bare, noisy = sorted(rows, key=lambda row: row["defense"] != "none")
    for moment, least in (("after_training", 0.04), ("after_broadcast", 0.3)):
        gains = [float(row[f"gain_over_local_{moment}"]) for row in (bare, noisy)]
        assert gains[0] > 0 > gains[1]  # whoever takes part under the noise is worse off than alone
        assert gains[0] - gains[1] > least
        low, high = (float(noisy[f"gain_over_local_{moment}_{end}"]) for end in ("low", "high"))
        assert low < gains[1] < high
    assert {row["bettered"] for row in rows} == {"False"}
    assert "long dashes: without exchange" in (page / "report.html").read_text()
