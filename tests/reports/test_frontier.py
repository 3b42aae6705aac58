"""The frontier: what dominates what, by hand and by a property; one point an upload; which to prefer."""

import dataclasses

import numpy as np
import pytest
from eval_cases import ABOUT, but
from frontier_cases import LEAK, NONE, OPEN, QUANTISED, answer, page, upload
from hypothesis import given
from hypothesis import strategies as st
from looped import each

from fedpriv.defenses import build_defenses, parse_choice
from fedpriv.eval.intervals import clustered
from fedpriv.eval.records import NamedClasses
from fedpriv.federation.defense import DefensePipeline
from fedpriv.federation.run_directory import DefenseChoice, RunConfig, RunDirectory
from fedpriv.federation.summary import Communication, ReachedAccuracy
from fedpriv.reports.charts import WITHOUT_LOCAL, frontier_svg
from fedpriv.reports.frontier import Frontier, dominates, frontier_items, recommendation, recommended
from fedpriv.reports.labels import upload_size
from fedpriv.reports.page import table_rows
from fedpriv.reports.run_records import baselines, beside, gain_over_local, same_clients
from fedpriv.uploads.ledger import Entry, count
from fedpriv.util.config import plain

ONE, MORE, NOTHING, UNKNOWN = answer(), answer(advantage=4.0), answer(NONE, -1.0), answer(OPEN)
CLEAR = answer(named=NamedClasses(clients=4, exact=4, counts_exact=0), ci95=None)
OTHER = answer(target="entangled")
((BARE,),) = [frontier.points for frontier in page(upload())]


def point(one, cost=0.9, **more):
    answers = {"reconstruction": one, **more}
    size, trained = BARE.bytes._replace(mean=1e6 * cost), BARE.trained._replace(mean=cost)
    return dataclasses.replace(BARE, answers={k: v for k, v in answers.items() if v}, trained=trained, bytes=size)


kinds = st.sampled_from([None, ONE, MORE, NOTHING, UNKNOWN, CLEAR, OTHER, answer(NONE, -4.0)])
points = st.builds(lambda one, more, cost: point(one, cost, membership=more), kinds, kinds, st.sampled_from([0.8, 0.9]))


@given(points, points, points)
def test_domination_is_an_order(one, two, three):
    assert not dominates(one, one)
    assert not (dominates(one, two) and dominates(two, one))
    if dominates(one, two) and dominates(two, three):
        assert dominates(one, three)


@each(
    "one, two, better",
    [
        *((NOTHING, ONE, True), (ONE, NOTHING, False), (ONE, ONE, False), (ONE, MORE, True), (ONE, CLEAR, True)),
        *((CLEAR, CLEAR, False), (NOTHING, UNKNOWN, False), (UNKNOWN, NOTHING, False), (ONE, OTHER, False)),
        *((NOTHING, answer(NONE, 0.0), False), (NOTHING, OTHER, True)),
    ],
)
def test_which_leaks_less(one, two, better):
    assert dominates(point(one), point(two)) is better


@each(
    "one, two, better",
    [
        *((NOTHING, answer(NONE, -9.0), True), (NOTHING, UNKNOWN, True), (NOTHING, None, True), (CLEAR, CLEAR, True)),
        *((ONE, None, False), (ONE, UNKNOWN, False), (ONE, OTHER, False), (None, ONE, False)),
    ],
)
def test_where_leaks_are_equal_accuracy_decides(one, two, better):
    assert dominates(point(one, 0.95), point(two, 0.9)) is better


def test_one_point_an_upload_with_its_gravest_answers_and_the_best_first():
    leaking = upload(answer(threat="protocol"), answer(advantage=3.0), answer(NONE, endpoint="membership"))
    (found,) = page(leaking, upload(NOTHING, NOTHING.model_copy(update={"endpoint": "membership"}), method="fedre"))
    assert [one.label for one in found.points] == ["fedre", "fedgh"]
    assert found.best == (True, False)
    assert found.points[1].answers["reconstruction"].advantage == 3.0
    assert found.measured == ("membership", "reconstruction")
    rows = table_rows("frontier.csv", frontier_items((found,)))
    assert [row["dominated"] for row in rows] == [False, True]
    assert (rows[1]["reconstruction"], rows[1]["reconstruction_advantage"], rows[1]["membership"]) == (LEAK, 3.0, NONE)


NOISE = (DefenseChoice("noise", {"scale": 0.3}),)


def test_what_is_inconclusive_or_not_attacked_by_what_is_adapted_dominates_nothing():
    cheap = {"accuracy": 0.99, "scalars": 1}
    (found,) = page(upload(UNKNOWN, method="fedre", **cheap), upload(ONE))
    assert found.best == (True, True)
    (found,) = page(upload(ONE), upload(NOTHING, defenses=NOISE, **cheap))
    assert next(p for p in found.points if p.defense != "none").unadapted == "decoder; all-rounds"
    assert found.best == (True, True)
    assert "‡" in frontier_svg((found,))
    adapted = upload(NOTHING, defenses=NOISE, attack="all-rounds", rounds_seen=5, **cheap)
    (found,) = page(upload(ONE), upload(NOTHING, defenses=NOISE, **cheap), adapted)
    assert next(p for p in found.points if p.defense != "none").unadapted == ""
    assert found.best == (True, False)


def test_a_lost_broadcast_is_a_loss_and_other_tasks_share_no_frontier():
    def at(told, received):
        record, answers = told
        reached = record.about.run_accuracy
        worse = {"after_broadcast": but(reached["after_broadcast"], pooled=received)}
        return dataclasses.replace(record, about=but(record.about, run_accuracy={**reached, **worse})), answers

    (found,) = page(at(upload(ONE), 0.9), at(upload(ONE, method="fedre"), 0.2))
    assert {p.label: b for p, b in zip(found.points, found.best, strict=True)} == {"fedgh": True, "fedre": False}
    assert (found.points[0].local, found.locals) == (None, ())
    assert found.points[0].gains == {"after_training": None, "after_broadcast": None}
    assert WITHOUT_LOCAL[:30] in frontier_svg((found,))
    found = page(upload(), upload(method="fedre"), upload(dataset="mnist"), upload(clients=20))
    assert [len(one.points) for one in found] == [2, 1, 1]


def test_the_preferred_upload_leaks_least_then_is_the_most_accurate():
    leaking, safe = upload(ONE, accuracy=0.99), upload(NOTHING, method="fedre", accuracy=0.8)
    unknown = upload(UNKNOWN, method="fd", accuracy=0.95)
    (found,) = page(leaking, unknown, safe)
    assert recommended(found).label == "fedre"
    line, _ = recommendation(found)
    assert "fedre" in line
    assert "80 %" in line
    (found,) = page(leaking, unknown)
    assert recommended(found).label == "fd"
    assert recommendation(found)[1] == "Inconclusive: reconstruction."
    (found,) = page(leaking, upload(ONE, method="fd", accuracy=0.9))
    assert recommended(found).label == "fedgh"
    assert "leaks" in recommendation(found)[1]
    assert recommended(Frontier({}, (point(ONE), point(ONE, 0.89)), (True, True))).trained.mean == 0.89
    assert "gained" in recommendation(Frontier({}, (dataclasses.replace(point(ONE), local=0.9),), (True,)))[1]


def test_baselines_are_runs_of_the_same_clients_without_exchange():
    import fedpriv

    settings = {"dataset": "digits", "per_class": 12, "clients": 2, "partition": "iid", "rounds": 1, "epochs": 40}
    alone = [fedpriv.train("local", **settings, lr=0.1, seed=seed) for seed in (0, 1)]
    federation = fedpriv.train("fedgh", **settings, lr=0.02)
    poor = [fedpriv.train("local", **settings, lr=1e-6, seed=seed) for seed in (0, 1, 3)]
    known = baselines([run.path for run in (*alone, federation, *poor)])
    run = RunDirectory.open(federation.path)
    about = but(ABOUT, run=run.config, run_accuracy=run.summary.accuracy)
    for seed, one in enumerate(alone):
        reached = RunDirectory.open(one.path).summary.accuracy["after_training"]
        own = but(about, run=dataclasses.replace(run.config, seed=seed))
        assert beside(own, known) == reached
        assert sum(right for right, _ in reached.clients) / sum(total for _, total in reached.clients) == reached.pooled
    for changed in ({"rounds": 2}, {"seed": 2}, {"participation": 0.5}, {"dataset": "folder", "data_dir": "mine"}):
        assert beside(but(about, run=dataclasses.replace(run.config, **changed)), known) is None
    stored = dataclasses.replace(run.config, capture="last", keep=(1,), options={"x": 1}, defenses=NOISE)
    assert beside(but(about, run=stored), known) is not None


def reached(*clients):
    """Accuracy with these test images of each client correct, of ten, twenty, and so on."""
    counts = tuple((right, 10 * place) for place, right in enumerate(clients, start=1))
    pooled = sum(clients) / sum(total for _, total in counts)
    return ReachedAccuracy(
        **{"best": pooled, "best_round": 1, "pooled": pooled, "clients": counts},
        **{"mean_over_clients": 0.5, "best_mean_over_clients": 0.5, "best_mean_round": 1},
    )


TRAINED = {0: reached(9, 16, 24), 1: reached(8, 20, 27)}
RECEIVED = {0: reached(2, 5, 6), 1: reached(3, 5, 9)}
ALONE = {0: reached(5, 10, 24), 1: reached(6, 11, 12)}


def runs_of(seeds):
    accuracies = {seed: {"after_training": TRAINED[seed], "after_broadcast": RECEIVED[seed]} for seed in seeds}
    return [but(ABOUT, run=RunConfig(clients=3, seed=seed), run_accuracy=own) for seed, own in accuracies.items()]


KNOWN = {(same_clients(RunConfig(method="local", clients=3), any_rate=True), seed): own for seed, own in ALONE.items()}


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


def sent(choices, shape=(10, 64), clients=2):
    """What an attack's directory says of a round in which clients send one prototype matrix with its ids each."""
    matrix = Entry(1, 0, "upload", "prototype.features", shape, "float32", 4, in_paper_count=True)
    ids = Entry(1, 0, "upload", "prototype.classes", shape[:1], "int64", 8, in_paper_count=False)
    pipeline = DefensePipeline(build_defenses([parse_choice(choice) for choice in choices]))
    wire = [row for _ in range(clients) for row in pipeline.wire_entries([matrix, ids])]
    traffic = Communication(**plain(count(wire)))
    return upload_size(but(ABOUT, run=RunConfig(clients=clients, rounds=1), communication=traffic))


def test_what_is_not_encoded_counts_as_scalars():
    assert sent([])[1] == sent([])[0] == 640 + 10


@each(
    "choice, words",
    [
        ("quantise:bits=4", 640 * 4 / 32 + 1 + 10),  # one scale, ten ids
        ("quantise:bits=2", 640 * 2 / 32 + 1 + 10),
        ("prune:keep=0.1", 64 + 640 / 32 + 10),  # 64 values, and a bit for each of 640 places
    ],
)
def test_encoders_count_by_their_bits(choice, words):
    size = sent([choice])
    assert size[1] == words < sent([])[0]
    assert size[2] == 4 * (words - 10) + 8 * 10


def test_an_encoder_can_win():
    # As the encoder sends them: as many entries and eight scales, in four bits each.
    (found,) = page(
        upload(method="fedavg", scalars=22603), upload(method="fedavg", scalars=22611, bits=4, defenses=QUANTISED)
    )
    first = next(p for p in found.points if p.defense != "none")
    assert (first.scalars.mean, first.bytes.mean) == (pytest.approx(22611 / 8), pytest.approx(22611 / 2))
