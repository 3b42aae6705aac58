"""One sentence an upload: the gravest that its attacks support together, and never more."""

import dataclasses
from pathlib import Path

import pytest
from eval_cases import asked, but, defended, result, summary

from fedpriv.federation.method import LocalTraining
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.pages.findings import findings, upload_name
from fedpriv.scoring.records.reconstruction import Advantage, FeatureIdentification, FeatureMeasure
from fedpriv.scoring.verdict import verdict_kind


def judged(gain=-3.0, *, width=0.5, share=0.0, found=None, features=None, chance=0.2, folder="suite", **how):
    """An attack's record that verdicts can be read from."""
    attack = result(gain=gain, **how)
    record = attack.metrics
    measured = {"psnr_db": but(record.metrics.psnr_db, mean=10.0)}
    told = record.metrics.identification_top1
    nothing = 0.0 if found is None else found
    measured["identification_top1"] = but(told, mean=nothing, ci95=(nothing, nothing), chance=0.01)
    if features is not None:
        interval = (features, features)
        measured["feature_identification"] = summary(
            features, interval, FeatureIdentification, chance=chance, chance_of="strangers"
        )
        measured["relative_error"] = summary(0.056, kind=FeatureMeasure)
    above = summary(gain, (gain - width, gain + width), Advantage, share_3db=share, best_floor="noise")
    record = but(record, advantage_db=above, metrics=but(record.metrics, **measured))
    return dataclasses.replace(attack, directory=Path(folder) / attack.about.attack, metrics=record)


def only(attacks, members=None):
    (found,) = findings(attacks, members)
    return found


def test_no_attack_beats_a_guess():
    found = only([judged(-3.4), judged(-5.0, attack="pixels")])
    assert found.kind == "worse"
    assert found.sentence == (
        "No attack in this suite beats the floor. dip comes nearest: -3.4 dB against the floor "
        "(95 % interval -3.9 to -2.9)."
    )


def test_the_gravest_attack_speaks():
    found = only([judged(-3.4), judged(4.0, attack="joint")])
    assert found.kind == "leaks"
    assert found.sentence.startswith("Images leak to joint: +4.0 dB against the floor")


def test_gains_under_different_cards_are_never_ranked():
    seen = {"target": "entangled", "folder": "seen"}
    one = [judged(-3.4, **seen), judged(-5.0, attack="pixels", **seen)]
    many = [judged(gain, attack=name, rounds_seen=30, **seen) for gain, name in [(-4.5, "unmix"), (-6.0, "joint")]]
    assert only([*one, *many]).sentence == (
        "No attack in this suite beats the floor. "
        "dip comes nearest under card 1: -3.4 dB against the floor (95 % interval -3.9 to -2.9). "
        "unmix comes nearest under card 2: -4.5 dB against the floor (95 % interval -5.0 to -4.0)."
    )


def test_limited_local_work_stands_in_the_name_of_what_was_attacked():
    one = judged(4.0)
    few = dataclasses.replace(one.about.run, training=LocalTraining(max_steps=1, batch_size=1))
    short = dataclasses.replace(one, about=but(one.about, run=few), directory=Path("short") / "dip")
    assert [found.name.endswith("digits, one local step on one image a round") for found in findings([short])] == [True]
    assert not only([one]).name.endswith("a round")


@pytest.mark.parametrize(("defenses", "told"), [((), False), ((defended(scale=0.3),), True)])
def test_vectors_that_are_sent_as_they_are_need_no_recovery(defenses, told):
    sent = judged(-3.0, attack="average", features=1.0, target="prototype", rounds_seen=10)
    sent = dataclasses.replace(sent, about=but(sent.about, defenses=defenses))
    assert ("recovered" in only([sent]).sentence) == told


def test_a_leak_names_its_card():
    found = only([judged(-3.0), judged(1.0, attack="joint", rounds_seen=5), judged(2.0, rounds_seen=30)])
    assert found.kind == "leaks"
    assert [part.partition(":")[0] for part in found.sentence.split(". ")] == [
        "Images leak to dip under card 1",
        "Images leak to joint under card 2",
    ]


def test_the_nearest_is_the_one_that_gains_most():
    # The wide interval holds zero, the narrow one does not; it is nearer all the same.
    found = only([judged(-1.0, width=2.0), judged(-0.5, width=0.2, attack="pixels")])
    assert found.kind == "none"
    assert "pixels comes nearest: -0.5 dB" in found.sentence
    assert "seeds" not in found.sentence


def test_vectors_are_compared_within_one_card():
    # Better identified with five rounds than with thirty: the figures are those of thirty.
    attacks = [
        judged(attack="unmix", rounds_seen=n, target="entangled", features=share) for n, share in ((5, 1.0), (30, 0.8))
    ]
    sentence = only(attacks).sentence
    assert sentence.startswith("Class prototypes are recovered from 5 rounds: unmix tells 80 % from")
    assert "error 6 % under card " in sentence


def test_findings_of_one_kind_go_by_name():
    far = [judged(-3.0), judged(-1.0, method="fedgh", rounds_seen=30), judged(-9.0, method="fd")]
    assert [one.method for one in findings(far)] == ["fd", "fedgh", "fedre"]


def test_some_images_leak():
    found = only([judged(-1.0, share=0.25, found=0.4)])
    assert found.kind == "some"
    assert "25 % of targets beat the floor by 3 dB, 40 % are identified among decoys (chance 1 %)" in found.sentence


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        ({5: False, 12: True, 30: True}, "from 12 rounds on (not from 5)"),
        ({30: True}, "from 30 rounds"),
        ({12: True, 30: False}, "from 12 rounds"),
    ],
)
def test_from_how_many_rounds_on(rounds, told):
    attacks = [
        judged(attack="unmix", rounds_seen=n, target="entangled", features=1.0 if works else 0.2, folder=f"suite-{n}")
        for n, works in rounds.items()
    ]
    found = only(attacks)
    assert found.kind == "features"
    assert found.sentence.startswith(f"Class prototypes are recovered {told}: unmix tells 100 % ")
    assert found.sentence.endswith("No attack in this suite makes an image that beats the floor.")


def test_a_single_lucky_seed_is_told_as_such():
    attacks = [judged(gain, seed=seed, width=1.0) for seed, gain in enumerate((-0.5, 1.5, -0.4))]
    assert [verdict_kind(attack.metrics) for attack in attacks] == ["none", "leaks", "none"]
    found = only(attacks)
    assert found.kind == "none"
    assert "mean of 3 seeds, -0.5 to +1.5" in found.sentence
    assert "so in 2 of 3 seeds" in found.sentence


def test_uploads_are_apart_and_the_gravest_comes_first():
    noisy = judged(-4.0, defenses=(DefenseChoice("noise", {"scale": 0.3}),))
    found = findings([judged(-3.0), noisy, judged(2.0, method="fedgh")])
    assert [one.name for one in found] == [
        "prototype uploads of fedgh, digits",
        "prototype uploads of fedre, digits",
        "prototype uploads of fedre + noise scale=0.3, digits",
    ]


def member(low, *, kind="membership", method="fedre", **changes):
    return asked(
        kind,
        low + 0.05,
        (low, low + 0.1),
        control=changes.pop("control", 0.5),
        method=method,
        verdict=f"AUC {low}.",
        **changes,
    )


def test_membership_stands_with_the_suite_it_was_asked_in():
    members = {
        Path("suite/membership"): member(0.45),
        Path("other/membership"): member(0.7, method="fd", target="logits"),
        Path("other/property"): member(0.7, kind="property", method="fd", target="logits"),
    }
    with_images, alone = findings([judged()], members)
    assert (with_images.members, with_images.also) == ("AUC 0.45.", ())
    assert (alone.name, alone.kind) == ("logits uploads of fd, digits", None)
    assert alone.also == ("leaks membership", "leaks a property")


def test_membership_that_other_uploads_show_too_is_no_leak():
    assert only([judged()], {Path("suite/membership"): member(0.55, control=0.6)}).also == ()


def test_names_of_uploads():
    assert upload_name("fedre (width 32)", "entangled") == "entangled uploads of fedre (width 32)"
