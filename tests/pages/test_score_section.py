"""Rows and verdicts on membership and properties name the upload that they are about: method, defense, label, seed."""

from pathlib import Path

from eval_cases import asked, but, compared, defended
from looped import each

from fedpriv.federation.run_directory import RunConfig
from fedpriv.pages.alike import judge_results
from fedpriv.pages.findings import findings
from fedpriv.pages.report import score_sections
from fedpriv.scoring.records import Labels
from fedpriv.scoring.records.made import Stage

MEMBERSHIP, PROPERTY = asked("membership"), asked("property")


def noised(scale):
    return (defended(scale=scale),)


def stage(name):
    return Stage(name=name, round=1, of=10, accuracy={})


def three(record):
    """The same upload bare, under little noise, and under much."""
    defenses = [(), noised(0.3), noised(0.7)]
    return [but(record, defenses=own, comparisons=(compared(record.kind, p_value=0.5),)) for own in defenses]


def sections(records):
    folders = {Path(f"{number}/inference"): record for number, record in enumerate(records)}
    return score_sections(folders, judge_results(folders))


def cells(markdown):
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    names = lines[0].strip("| ").split(" | ")
    return [dict(zip(names, line.strip("| ").split(" | "), strict=True)) for line in lines[2:]]


@each("record", [MEMBERSHIP, PROPERTY])
def test_the_defense_is_named_in_the_row_and_in_the_verdict(record):
    page, markdown = sections(three(record))
    assert [row["defense"] for row in cells(markdown)] == ["none", "noise scale=0.3", "noise scale=0.7"]
    for text in (page, markdown):
        assert "fedproto, prototype, digits, seed 0:" in text
        assert "fedproto + noise scale=0.3, prototype, digits, seed 0:" in text
        assert "fedproto + noise scale=0.7, prototype, digits, seed 0:" in text
    assert '<td class="text">noise scale=0.3</td>' in page
    assert page.count("fedpriv audit s.toml") == 1


@each("record", [MEMBERSHIP, PROPERTY])
def test_the_labels_of_a_study_are_named_beside_the_registry_names(record):
    called = Labels(method="My <prototypes>", defense="Weak")
    page, markdown = sections([but(one, labels=called) for one in three(record)[1:]])
    assert "My &lt;prototypes> (fedproto) + Weak (noise scale=0.3), prototype" in markdown
    assert "My &lt;prototypes&gt; (fedproto) + Weak (noise scale=0.7), prototype" in page


def test_seeds_data_sets_and_stages_are_told_where_they_differ():
    _, markdown = sections(three(MEMBERSHIP))
    assert "seed" not in cells(markdown)[0]
    assert "data set" not in cells(markdown)[0]
    bare = three(MEMBERSHIP)[0]
    other = but(bare, run=RunConfig(dataset="digits", auxiliary=0, seed=1), stage=stage("early"), dataset="cifar10")
    _, markdown = sections([bare, other])
    assert [(row["seed"], row["data set"]) for row in cells(markdown)] == [("0", "digits"), ("1", "cifar10")]
    assert "fedproto, prototype, early, cifar10, seed 1:" in markdown


def test_findings_tell_stages_of_verdicts_and_seeds_together():
    early, late = (but(three(MEMBERSHIP)[0], stage=stage(name)) for name in ("early", "converged"))
    folders = [Path(f"suite/membership-{n}") for n in range(2)]
    apart = dict(zip(folders, (early, late), strict=True))
    (found,) = findings(apart, judge_results(apart))
    assert found.members.startswith("membership, early: Not tested")
    assert " membership, converged: Not tested" in found.members
    seeds = dict(zip(folders, (early, but(early, run=RunConfig(seed=1))), strict=True))
    (found,) = findings(seeds, judge_results(seeds))
    assert found.members.count("AUC") == 1
