"""The frontier: what betters what, by hand and by a property; one point an upload; what may be compared."""

import dataclasses

import numpy as np
import pytest
from eval_cases import ABOUT, but, result
from frontier_cases import LOOSE, image, judged, member, page
from hypothesis import given
from hypothesis import strategies as st

from fedpriv.eval.intervals import clustered
from fedpriv.federation.run_directory import DefenseChoice, RunConfig, RunDirectory
from fedpriv.federation.summary import ReachedAccuracy
from fedpriv.reports.charts import WITHOUT_LOCAL, frontier_svg
from fedpriv.reports.frontier import Effect, Objectives, dominates
from fedpriv.reports.run_records import baselines, beside, gain_over_local, same_clients


def effect(value=1.0, *, stands=False, tested=True, unit="prototype", low=None, high=None):
    return Effect("dip", value, low, high, stands, tested, unit)


LEAK, MORE, NONE, UNTESTED = effect(2.0, stands=True), effect(4.0, stands=True), effect(-1.0), effect(tested=False)
OUTRIGHT, OTHER = effect(None, stands=True), effect(3.0, stands=True, unit="entangled")


def objectives(found, cost=1.0, **more):
    return Objectives({} if found is None else {"images": found, **more}, {"error": cost})


kinds = st.sampled_from([None, LEAK, MORE, NONE, UNTESTED, OUTRIGHT, OTHER, effect(-4.0)])
points = st.builds(
    lambda own, more, cost: objectives(own, cost, **({} if own is None or more is None else {"membership": more})),
    kinds,
    kinds,
    st.sampled_from([0.0, 1.0]),
)


@given(points, points, points)
def test_bettering_is_an_order(one, two, three):
    assert not dominates(one, one)
    assert not (dominates(one, two) and dominates(two, one))
    if dominates(one, two) and dominates(two, three):
        assert dominates(one, three)


# ---------------------------------------------------------------- points


def test_one_point_an_upload_with_the_most_severe_of_all_its_attacks():
    vectors = (judged(mean=-5.0), judged("vectors", 0.3, stands=True))
    unmixed = (result("fedre", attack="unmix", target="entangled", rounds_seen=30), vectors, ())
    (found,) = page(image(9.0, method="fedre", target="entangled"), unmixed, member(method="fedre", target="entangled"))
    (point,) = found.points
    assert point.kind == "vectors"  # not that of the attack with the largest gain, which proves nothing
    assert found.measured == ("images", "representations", "membership")
    assert (point.effects["representations"].value, point.effects["representations"].attack) == (0.3, "unmix")
    assert point.effects["membership"].stands
    assert found.card.rounds_seen == 30


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
    assert noisy.unadapted == "decoder; all-rounds"
    assert found.best == (True, True)
    (found,) = page(
        plainly,
        image(-3.0, defenses=NOISE, accuracy=0.99, scalars=1),
        image(-2.0, defenses=NOISE, accuracy=0.99, scalars=1, attack="all-rounds", rounds_seen=5),
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
        **{"final": pooled, "best": pooled, "best_round": 1, "pooled": pooled, "clients": counts},
        **{"mean_over_clients": 0.5, "best_mean_over_clients": 0.5, "best_mean_round": 1},
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
