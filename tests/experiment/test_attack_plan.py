"""What an attack is asked to do: budgets, stages and options, before anything is trained or attacked."""

import re
from types import SimpleNamespace

import pytest
from looped import each

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.evidence.stages import STAGES, kept_rounds, planned_rounds, rounds_to_keep, stage_round
from fedpriv.experiment.plan import (
    AttackPlan,
    attack_names,
    build_attacks,
    granted,
    options_by_attack,
    parse_budgets,
    parse_stages,
)
from fedpriv.util.errors import UserError


def plan(*names, **changes):
    return AttackPlan("entangled", build_attacks(names, {}), KnowledgeCard(), **changes)


def folders(asked):
    return [job.folder for job in asked.jobs()]


# ---------------------------------------------------------------- jobs


def test_one_job_an_attack_where_nothing_else_is_asked():
    asked = plan("dip", "pixels")
    assert folders(asked) == ["dip", "pixels"]
    assert all(job.control and job.attack == asked.attacks[job.name] for job in asked.jobs())


def test_budgets_set_the_field_that_the_attack_names():
    jobs = plan("dip", budgets=(10, 30)).jobs()
    assert [(job.folder, job.attack.iterations) for job in jobs] == [("dip@10", 10), ("dip@30", 30)]
    (job,) = AttackPlan("model", build_attacks(["dlg"], {}), KnowledgeCard(), budgets=(3,)).jobs()
    assert job.attack.outer_steps == 3


def test_permuted_uploads_are_attacked_at_the_largest_budget_unless_asked():
    assert [job.control for job in plan("dip", budgets=(10, 30)).jobs()] == [False, True]
    assert [job.control for job in plan("dip", budgets=(10, 30), control_every_budget=True).jobs()] == [True, True]
    assert [job.control for job in plan("dip", budgets=(10, 30), control=False).jobs()] == [False, False]


def test_stages_and_budgets_multiply():
    asked = plan("dip", budgets=(10, 30), stages={"early": 2, "converged": 30})
    assert folders(asked) == ["dip-early@10", "dip-early@30", "dip-converged@10", "dip-converged@30"]
    assert {job.round for job in asked.jobs() if job.stage == "early"} == {2}


def test_a_stage_before_the_rounds_that_an_attack_needs_is_left_out_in_words():
    asked = plan("dip", "unmix", stages={"early": 1, "converged": 10})
    assert folders(asked) == ["dip-early", "dip-converged", "unmix-converged"]
    (line,) = asked.left_out()
    assert "'unmix' on the early stage: it needs 2 rounds" in line


# ---------------------------------------------------------------- budgets and stages


def test_budgets_are_sorted():
    assert parse_budgets(None) == ()
    assert parse_budgets("300,100") == (100, 300)


@each("text", ["", "100,", "a", "0,3", "-1", "1.5", "3,3"])
def test_other_budgets_are_refused(text):
    with pytest.raises(UserError, match=r"^budget"):
        parse_budgets(text)


def test_stages_come_in_the_order_of_training():
    assert parse_stages(["converged", "early, middle"]) == STAGES
    with pytest.raises(UserError, match="unknown stage 'erly'; did you mean 'early'"):
        parse_stages(["erly"])


@each("rounds", range(3, 200))
def test_stages_are_different_rounds_and_the_early_one_is_early(rounds):
    early, middle, last = (stage_round(stage, rounds) for stage in STAGES)
    assert 1 <= early < middle < last == rounds
    if rounds >= 10:
        assert early <= 0.1 * rounds
    if rounds >= 20:
        assert early >= 0.05 * rounds


def test_a_run_too_short_for_stages_is_refused():
    assert planned_rounds(["converged"], 1) == {"converged": 1}
    with pytest.raises(UserError, match="2 round"):
        planned_rounds(["early", "converged"], 2)


def test_an_update_needs_the_network_of_the_round_before():
    assert rounds_to_keep("prototype", [2, 30]) == (2, 30)
    assert rounds_to_keep("classifier", [1, 15, 30]) == (1, 14, 15, 29, 30)


# ---------------------------------------------------------------- options


def test_an_option_reaches_every_attack_that_has_it_and_a_named_one_wins():
    names = ("dip", "pixels", "membership")
    found = options_by_attack(names, ["learning_rate=0.1", "pixels.learning_rate=0.2", "candidates=7"], restarts=2)
    assert found["dip"] == {"learning_rate": 0.1, "restarts": 2}
    assert found["pixels"] == {"learning_rate": 0.2, "restarts": 2}
    assert found["membership"] == {"candidates": 7}
    assert build_attacks(names, found)["membership"].candidates == 7


def test_iterations_are_the_budget_of_each():
    found = options_by_attack(("dip", "membership"), [], iterations=9)
    assert found == {"dip": {"iterations": 9}, "membership": {}}
    assert options_by_attack(("dlg",), [], iterations=9)["dlg"] == {"outer_steps": 9}


@each(
    "names, pairs, more, complaint",
    [
        (("dip", "pixels"), ["learning_rat=1"], {}, "unknown key 'learning_rat'; did you mean 'learning_rate'"),
        (("dip",), ["pixels.patience=3"], {}, "attack 'pixels' does not run here; there are: dip"),
        (("dip",), ["dip=3"], {}, ": expected dip.KEY=VALUE"),
        (("membership",), [], {"iterations": 5}, "iterations: membership has no budget"),
        (("membership",), [], {"budgets": (5,)}, "budget: membership has no budget"),
        (("dip",), ["iterations=4"], {"budgets": (5,)}, "budget sets it for attack 'dip'"),
        (("dip",), ["iterations=4"], {"iterations": 5}, "attack_option iterations: iterations sets it"),
        (("dlg",), ["dlg.outer_steps=4"], {"iterations": 5}, "attack_option outer_steps: iterations sets it"),
        (("dip", "pixels"), ["pixels.restarts=4"], {"restarts": 2}, "restarts sets it for attack 'pixels'"),
        (("dip",), ["restarts=2"], {"restarts": 2}, "attack_option restarts: restarts sets it for attack 'dip'"),
        (("membership",), [], {"restarts": 2}, "restarts: membership has no restarts; drop the flag"),
    ],
)
def test_options_that_nobody_has_are_refused(names, pairs, more, complaint):
    with pytest.raises(UserError, match=re.escape(complaint)):
        options_by_attack(names, pairs, **more)


def test_a_named_attack_without_its_grant_is_refused_and_others_are_left_out():
    chosen = build_attacks(("dip", "membership"), {})
    card = KnowledgeCard(extractor="query")
    kept, lines = granted(chosen, (), "prototype", card, None)
    assert list(kept) == ["membership"]
    assert "attack 'dip' needs extractor=white_box or shadow" in lines[0]
    with pytest.raises(UserError, match="attack 'dip' needs"):
        granted(chosen, ("dip",), "prototype", card, None)


def test_names_fit_the_target():
    assert attack_names("entangled", ["dip", "dip"]) == ("dip",)
    with pytest.raises(UserError, match=r"attacks model .*not entangled"):
        attack_names("entangled", ["dlg"])


class Run:
    """What a finished run kept, of 30 rounds whose uploads are all there."""

    path = "run"

    def __init__(self, *checkpoints):
        self.config = SimpleNamespace(rounds=30)
        self._checkpoints = checkpoints

    def captured_rounds(self):
        return dict.fromkeys(range(1, 31), (0,))

    def checkpointed_rounds(self):
        return self._checkpoints


@each("kind", ["model", "small-model", "low-rank-model"])
def test_uploads_of_whole_networks_need_no_checkpoint_for_a_stage(kind):
    assert kept_rounds(Run(30), kind, ["early", "middle"]) == {"early": 2, "middle": 15}


def test_an_extractor_needs_the_checkpoint_that_holds_its_head():
    assert kept_rounds(Run(3, 30), "extractor", ["early"]) == {"early": 3}
    with pytest.raises(UserError, match="nothing of the early stage"):
        kept_rounds(Run(30), "extractor", ["early"])


def test_an_attack_for_who_has_no_extractor_runs_there_and_is_not_missed_elsewhere():
    suite = build_attacks(attack_names("representation", ()), {})
    with_extractor = KnowledgeCard(attacker_data="same_domain")
    without = KnowledgeCard(extractor="none", attacker_data="same_domain")
    kept, left_out = granted(suite, (), "representation", with_extractor, None)
    assert "decoder" in kept
    assert "simulator" not in kept
    assert not [line for line in left_out if "simulator" in line]
    kept, left_out = granted(suite, (), "representation", without, None)
    assert "simulator" in kept
    assert [line for line in left_out if "decoder" in line]
    with pytest.raises(UserError, match="'simulator' needs extractor=none"):
        granted(suite, ("simulator",), "representation", with_extractor, None)
