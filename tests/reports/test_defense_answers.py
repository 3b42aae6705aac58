"""Which attacks count as the answer to a defense: those it names, with the option it asks for, on that kind of upload."""

from pathlib import Path
from types import SimpleNamespace

from defense_cases import CASES, OPTIONS, build, fits
from eval_cases import ABOUT, but, defended
from looped import each

from fedpriv.attacks import ATTACKS, target_names, targets_of
from fedpriv.defenses import DEFENSES, build_defenses
from fedpriv.federation.answer import NO_OTHERS, Answer, answer_sentence, answers_for
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.run_directory import DefenseChoice
from fedpriv.federation.summary import DefenseFacts
from fedpriv.reports.privacy import defenses
from fedpriv.util.config import parse, plain

ROTATING, FIXED = {"schedule": "rotating"}, {"schedule": "fixed"}


def counted(defense, attack, target, options=None, of=None):
    made = DEFENSES.load(defense)
    return any(way.met_by(attack, options or {}) for way in answers_for(made.answers, target, of or {}))


@each(
    "defense, attack, target, options, counts",
    [
        ("clip", "dip", "prototype", {"match": "direction"}, True),
        ("clip", "dip", "prototype", {"match": "vector"}, False),
        ("clip", "dip", "logits", {"match": "direction"}, False),
        ("clip", "inverting-gradients", "model", {"match": "all"}, True),
        ("prune", "dlg", "model", {"match": "sent"}, True),
        ("prune", "dlg", "model", {"match": "all"}, False),
        ("sign", "dlg", "model", {"match": "sent"}, False),
        ("sign", "dlg", "model", {"match": "signs"}, True),
        ("noise", "dip", "prototype", {"match": "vector"}, False),
        ("noise", "unmix", "entangled", {}, True),
        ("dp-noise", "inverting-gradients", "model", {}, True),
        ("local-dp", "inverting-gradients", "extractor", {}, True),
        ("percentile-privacy", "dlg", "model", {"match": "censored"}, True),
        ("percentile-privacy", "dlg", "model", {"match": "sent"}, False),
        ("upload-interval", "unmix", "entangled", {}, True),
        ("count-floor", "dip", "prototype", {}, True),
        ("quantise", "all-rounds", "prototype", {}, True),
        ("quantise", "dip", "prototype", {}, False),
        ("soteria", "dlg", "model", {"ignore": "head.*"}, True),
        ("soteria", "dlg", "model", {"ignore": "head.bias"}, False),
        ("soteria", "dlg", "model", {"ignore": "head.weight+head.bias"}, True),
        ("precode", "inverting-gradients", "model", {"ignore": "bottleneck.*+head.*"}, True),
        ("precode", "inverting-gradients", "model", {"ignore": "bottleneck.*"}, False),
        ("entangle", "unmix", "entangled", {}, True),
        ("entangle", "unmix", "prototype", {}, False),
        ("hide-labels", "dip", "entangled", {}, False),
        ("dp-sgd", "dlg", "model", {}, True),
        ("hide-labels", "unmix", "entangled", {"weights": "sent"}, False),
        ("hide-labels", "unmix", "entangled", {"weights": "hidden"}, True),
        ("secure-aggregation", "dlg", "model", {}, False),
        ("secure-aggregation", "pooled", "model", {}, True),
        ("transform", "inverting-gradients", "model", {}, True),
        ("mixup", "dlg", "model", {"labels": "joint"}, True),
        ("mixup", "dlg", "model", {}, False),
        ("noise", "class-inversion", "logits", {"match": "class"}, True),
        ("soteria", "head-update", "classifier", {"match": "nonzero"}, True),
    ],
)
def test_what_counts_as_an_answer(defense, attack, target, options, counts):
    assert counted(defense, attack, target, options) is counts


@each("name, answer", [(name, answer) for name in DEFENSES for answer in DEFENSES.load(name).answers])
def test_an_answer_names_attacks_that_run_with_its_options_on_the_kinds_it_names(name, answer):
    defense = DEFENSES.load(name)
    for attack in answer.attacks:
        made = parse(ATTACKS.load(attack), answer.options, f"answer of {name}")
        assert answer.met_by(attack, plain(made))
        assert set(answer.kinds or ()) <= set(targets_of(attack)), attack
    assert answer.kinds is None or answer.kinds
    assert set(answer.kinds or ()) <= set(target_names())
    for option, value in answer.where.items():
        made = parse(defense, {option: value}, name)
        assert answer in answers_for(defense.answers, answer.kinds[0], plain(made))


@each("name", sorted(DEFENSES))
def test_every_defense_is_answered_on_every_kind_of_upload_that_it_fits(name):
    defense = DEFENSES.load(name)
    assert sum(answer.kinds is None for answer in defense.answers) <= 1
    assert "not evaluated" not in answer_sentence(defense.answers, defense.unanswered)
    if any(answer.kinds is None for answer in defense.answers):
        return
    for options in OPTIONS.get(name, ("",)):
        (chosen,) = build(f"{name}:{options}" if options else name)
        for kind in CASES:
            if fits((chosen,), kind):
                made = kind if name != "entangle" else "entangled"
                assert answers_for(defense.answers, made, plain(chosen)), (options, kind)


def test_what_is_not_answered_says_why():
    alone = Answer(("dip",), ("prototype",))
    assert answer_sentence([alone]) == "dip on prototype uploads; on others not evaluated"
    assert answer_sentence([alone], NO_OTHERS) == "dip on prototype uploads; it fits no others"
    assert answer_sentence((), "nobody tried") == "not evaluated: nobody tried"


def test_what_records_say_of_a_defense_is_enough_to_know_its_answers():
    (made,) = build_defenses([DefenseChoice("diagonal", {"schedule": "fixed"})])
    facts = DefenseFacts.model_validate_json(defense_facts(made).model_dump_json(), strict=True)
    assert facts.label == "diagonal schedule=fixed"
    assert facts.options == {"blocks": 4, "schedule": "fixed"}
    assert [way.words for way in answers_for(facts.answers, "prototype", facts.options)] == [
        "decoder",
        "all-rounds",
        "dip with match=nonzero",
    ]
    assert answer_sentence(facts.answers) == answer_sentence(made.answers)


def test_the_page_on_defenses_has_a_row_for_each():
    page = (Path(__file__).parents[2] / "docs" / "defenses.md").read_text().partition("## Measured")[0]
    assert {line.split("`")[1].partition(":")[0] for line in page.splitlines() if line.startswith("| `")} >= {*DEFENSES}


def ran(method, target, attack, *chosen, labels=None):
    guards = tuple(defended(name, **own) for name, own in chosen)
    about = but(ABOUT, method=method, target=target, attack=attack, defenses=guards, labels=labels)
    return SimpleNamespace(about=about)


NOISE = ("noise", {"scale": 0.3})


def test_an_attack_on_one_kind_of_upload_is_none_on_another():
    rows = defenses(
        [
            ran("fedproto", "prototype", "dip", NOISE),
            ran("fedgh", "prototype", "dip", NOISE),
            ran("fedre", "entangled", "unmix", NOISE),
            ran("fedre", "entangled", "dip", NOISE),
            ran("fedre", "entangled", "unmix"),
        ]
    )
    assert [(row.name, row.target, row.methods) for row in rows] == [
        ("noise scale=0.3", "prototype", ("fedproto", "fedgh")),
        ("noise scale=0.3", "entangled", ("fedre",)),
    ]
    assert rows[0].evaluated.count("decoder; all-rounds was not run on fed") == 2
    assert rows[1].evaluated == "the adapted attack was run"
