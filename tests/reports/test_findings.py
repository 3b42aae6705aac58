"""One finding an upload: the most severe that its attacks support together, and never more."""

import dataclasses
from pathlib import Path

from eval_cases import asked, but, compared, result, summary
from fedpriv.eval.reasons import Reason
from fedpriv.eval.verdict import words
from fedpriv.reports.findings import findings, marks

from fedpriv.eval.records import FeatureMeasure, Upload
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.reports.labels import by_folder, judge_results, strongest_first

SURE = 1e-6


def attack(*comparisons, folder=None, control=True, **how):
    """A scored attack whose comparisons are these; of a mean alone those of images."""
    made = tuple(item if not isinstance(item, float) else images(item) for item in comparisons)
    one = result(gain=made[0].mean, **how)
    errors = summary(0.056, kind=FeatureMeasure, per_target=(0.056, 0.056))
    record = but(one.metrics, comparisons=made, metrics=but(one.metrics.metrics, relative_error=errors))
    if not control:
        record = but(record, control=but(record.control, shuffled=None))
    name = folder or f"{record.attack}-{record.seed}-{record.knowledge.rounds_seen}-{record.method}-{id(record)}"
    return dataclasses.replace(one, directory=Path("suite") / name, metrics=record)


def images(mean, **changes):
    return compared("images", mean, SURE if mean > 1 else 0.9, **changes)


def vectors(works=True, **changes):
    return compared("vectors", 0.3, SURE if works else 0.9, against="auxiliary", **changes)


def all_of(attacks, members=None):
    results = by_folder(attacks, members or {})
    return findings(results, judge_results(results))


def only(attacks, members=None):
    (found,) = all_of(attacks, members)
    return found


# ---------------------------------------------------------------- images


def test_no_attack_beats_a_guess():
    found = only([attack(-3.4), attack(-5.0, attack="pixels")])
    assert found.kinds == ("none",)
    assert found.sentence == (
        "No leak detected: dip comes nearest: -3.4 dB against the baseline (uniform noise; 95 % interval -3.9 to -2.9)."
    )


def test_what_was_not_tested_hard_enough_is_never_called_safe():
    found = only([attack(-3.4), attack(-5.0, attack="pixels", control=False)])
    assert found.kinds == ("untested",)
    assert found.sentence.startswith("Inconclusive, pixels: the attack was not run on shuffled uploads. So far -5.0 dB")


def test_a_finding_names_the_strata_that_it_holds_for():
    one = attack(images(-1.0), vectors(works=False), vectors(stratum="1", n=1), vectors(stratum="2-3", n=1))
    one = dataclasses.replace(one, about=but(one.about, upload=Upload(vectors="class prototypes")))
    named = but(one.metrics, upload=Upload(vectors="class prototypes"))
    rows = tuple(but(row, stratum=name) for row, name in zip(named.targets, ("1", "2-3"), strict=True))
    found = only([dataclasses.replace(one, metrics=but(named, targets=rows))])
    assert found.kinds == ("vectors",)
    assert found.sentence.startswith(
        "Class prototypes of targets made of 1 image or 2-3 images are recovered by dip: relative error 1 image: 6 %"
    )
    assert ": 36 %)" in found.sentence  # of the baseline
    assert "Images are not shown to come back: dip comes nearest: -1.0 dB" in found.sentence


# ---------------------------------------------------------------- several seeds


def test_seeds_are_judged_together():
    attacks = [attack(gain, seed=seed) for seed, gain in enumerate((-0.5, 1.5, -0.4))]
    found = only(attacks)
    assert (found.kinds, found.attacks[0].verdict.reasons[0].name) == (("untested",), "not_excluded")
    assert "Inconclusive, dip (3 seeds): its PSNR may lie up to " in found.sentence
    two = only([attack(gain, seed=seed) for seed, gain in enumerate((-3.0, -6.0))])
    assert two.kinds == ("none",)  # though t with one degree of freedom reaches far above 0.5 dB
    assert words(two.attacks[0].verdict).endswith("; each of the 2 seeds by itself excludes an effect that counts.")
    behind = only([attack(gain, seed=seed) for seed, gain in enumerate((-3.4, -3.5, -3.6))])
    assert behind.kinds == ("none",)
    assert "dip (3 seeds) comes nearest: -3.5 dB" in behind.sentence
    sure = only([attack(gain, seed=seed) for seed, gain in enumerate((3.4, 3.5, 3.6))])
    assert sure.kinds == ("leaks",)
    assert sure.sentence.startswith("Images leak to dip (3 seeds): mean PSNR 100.0 dB, +3.5 dB")


# ---------------------------------------------------------------- several uploads


def test_uploads_are_apart_and_the_most_severe_comes_first():
    noisy = attack(-4.0, defenses=(DefenseChoice("noise", {"scale": 0.3}),))
    found = all_of([attack(-3.0), noisy, attack(2.0, method="fedgh"), attack(-1.0, control=False, method="fd")])
    assert [one.name for one in found] == [
        "prototype uploads of fedgh, digits",
        "prototype uploads of fd, digits",
        "prototype uploads of fedre, digits",
        "prototype uploads of fedre + noise scale=0.3, digits",
    ]
    assert [one.kinds for one in found] == [("leaks",), ("untested",), ("none",), ("none",)]


# ---------------------------------------------------------------- membership and properties


def member(p_value, *, kind="membership", method="fedre", ci95=(0.1, 0.3), **changes):
    own = attack(-1.0, method=method).about
    return asked(
        kind,
        control=0.5,
        method=method,
        run=own.run,
        comparisons=(compared(kind, 0.2 if p_value < 0.1 else -0.02, p_value, n=40, least=0.05, ci95=ci95),),
        **changes,
    )


def test_membership_stands_with_the_upload_it_was_asked_of():
    members = {
        Path("suite/membership"): member(0.4, ci95=(-0.1, 0.05)),
        Path("other/membership"): member(SURE, method="fd", target="logits"),
        Path("other/property"): member(SURE, kind="property", method="fd", target="logits"),
    }
    alone, with_images = all_of([attack(-3.0)], members)
    assert with_images.kinds == ("none",)
    assert with_images.members.startswith("No leak of membership detected: AUC 0.700")
    assert (alone.name, alone.kinds) == ("logits uploads of fd, digits", ("membership", "property"))
    assert alone.sentence == "No attack that makes images was run."
    assert "Leaks membership: AUC 0.700" in alone.members
    assert "Leaks a property (is it the client's most frequent class)" in alone.members


def test_gains_under_different_cards_are_never_ranked():
    seen = {"target": "entangled"}
    one = [attack(-3.4, **seen), attack(-5.0, attack="pixels", **seen)]
    many = [attack(gain, attack=name, rounds_seen=30, **seen) for gain, name in [(-4.5, "unmix"), (-6.0, "joint")]]
    sentence = only([*one, *many]).sentence
    assert "dip under threat model 1 comes nearest: -3.4 dB" in sentence
    assert "unmix under threat model 2 comes nearest: -4.5 dB" in sentence
    assert "pixels" not in sentence


def test_uploads_of_one_method_are_told_apart_by_their_kind():
    found = all_of([attack(-3.0), attack(-3.0, target="entangled"), attack(-3.0, target="entangled", width=32)])
    assert [one.upload for one in found] == [
        "entangled uploads of fedre (width 32)",
        "entangled uploads of fedre (width None)",
        "prototype uploads of fedre",
    ]


# ---------------------------------------------------------------- marks and rankings


def test_marks_say_what_leaks_what_does_not_and_what_was_not_asked():
    (leak, none), open_ = (only([attack(gain)]).attacks[0].verdict for gain in (2.0, -3.0)), {"kind": "untested"}
    loose = none.model_copy(update=open_ | {"reasons": (Reason(name="no_control"),)})
    assert [(mark.question, mark.state) for mark in marks([leak])] == [
        *(("images", "leaks"), ("representations", "unasked"), ("membership", "unasked"), ("properties", "unasked")),
    ]
    assert [marks(verdicts)[0].state for verdicts in ([none], [none, loose], [none, loose, leak])] == [
        *("none", "untested", "leaks"),
    ]
    vectors = Reason(name="not_excluded", value=0.2, beside=0.02, measure="vectors")
    part = none.compared[0].model_copy(update={"measure": "vectors"})
    both = none.model_copy(update={"reasons": (vectors,), "compared": (*none.compared, part)})
    assert [mark.state for mark in marks([both])][:2] == ["none", "untested"]  # a reason speaks of its own question
    asked = none.model_copy(update={"converged": None, "kind": "membership"})
    assert [mark.state for mark in marks([asked])] == ["unasked", "unasked", "leaks", "unasked"]
    clear = asked.model_copy(update={"kind": "property", "question": "is it its class", "clear": "is it its class"})
    assert marks([clear])[3].words == "sent in clear"


def test_rankings_and_their_members_begin_with_the_strongest():
    items = [attack(gain, rounds_seen=seen) for gain, seen in ((1.0, 1), (-2.0, 3), (3.0, 1), (4.0, 3))]
    ranked = strongest_first(items, lambda item: item.metrics)
    assert [[item.metrics.advantage_db.mean for item in group] for group in ranked] == [[4.0, -2.0], [3.0, 1.0]]
    assert strongest_first([], lambda item: item) == []
