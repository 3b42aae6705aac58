"""Rows and verdicts on membership and properties name the upload that they are about: method, defense, label, seed."""

from pathlib import Path

from eval_cases import asked, but, compared, defended
from looped import each

from fedpriv.eval.records import Labels, Stage
from fedpriv.federation.run_directory import RunConfig
from fedpriv.reports.entries import score_sections
from fedpriv.reports.findings import findings
from fedpriv.reports.labels import judge_results

MEMBERSHIP, PROPERTY = asked("membership"), asked("property")


def noised(scale):
    return (defended(scale=scale),)


def stage(name):
    return Stage(name=name, round=1, of=10, accuracy={})


def three(record):
    """The same upload bare, under little noise, and under much."""
    defenses = [(), noised(0.3), noised(0.7)]
    return [but(record, defenses=own, comparisons=(compared(record.kind, p_value=0.5),)) for own in defenses]


def section(records):
    folders = {Path(f"{number}/inference"): record for number, record in enumerate(records)}
    (made,) = score_sections(folders, judge_results(folders))
    return made


@each("record", [MEMBERSHIP, PROPERTY])
def test_the_upload_is_named_in_the_row_and_in_the_verdict(record):
    made = section(three(record))
    assert [row["defense"] for row in made["rows"]] == ["none", "noise scale=0.3", "noise scale=0.7"]
    assert [line[0] for line in made["lines"]] == [
        "fedproto, prototype, digits, seed 0",
        "fedproto + noise scale=0.3, prototype, digits, seed 0",
        "fedproto + noise scale=0.7, prototype, digits, seed 0",
    ]
    assert made["commands"].count("fedpriv audit s.toml") == 1
    called = section([but(one, labels=Labels(method="Mine", defense="Weak")) for one in three(record)[1:]])
    assert called["lines"][0][0].startswith("Mine (fedproto) + Weak (noise scale=0.3), prototype")
    assert not {"seed", "data set"} & set(made["rows"][0])


def test_seeds_data_sets_and_stages_are_named_where_they_differ():
    bare = three(MEMBERSHIP)[0]
    other = but(bare, run=RunConfig(dataset="digits", auxiliary=0, seed=1), stage=stage("early"), dataset="cifar10")
    made = section([bare, other])
    assert [(row["seed"], row["data set"]) for row in made["rows"]] == [("0", "digits"), ("1", "cifar10")]
    assert made["lines"][1][0] == "fedproto, prototype, early, cifar10, seed 1"


def test_findings_tell_stages_of_verdicts_and_seeds_together():
    early, late = (but(three(MEMBERSHIP)[0], stage=stage(name)) for name in ("early", "converged"))
    folders = [Path(f"suite/membership-{n}") for n in range(2)]
    apart = dict(zip(folders, (early, late), strict=True))
    (found,) = findings(apart, judge_results(apart))
    assert found.members.startswith("membership, early: Inconclusive")
    assert " membership, converged: Inconclusive" in found.members
    seeds = dict(zip(folders, (early, but(early, run=RunConfig(seed=1))), strict=True))
    (found,) = findings(seeds, judge_results(seeds))
    assert found.members.count("AUC") == 1
