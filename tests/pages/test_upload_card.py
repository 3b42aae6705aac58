"""Marks of an upload: leaks, no leak detected, inconclusive, not asked."""

import pytest
from eval_cases import firsts, reconstruction, truths
from eval_cases import stored_attack as attack

from fedpriv.pages.findings import findings, marks, short_name, upload_cards
from fedpriv.pages.labels import by_folder, judge_results
from fedpriv.scoring.reasons import Reason
from fedpriv.scoring.storage import load_attack


@pytest.fixture
def leak(tmp_path):
    secrets = truths([1] * 6)
    control = reconstruction(firsts(secrets).roll(2, 0))
    return load_attack(attack(tmp_path / "leak", firsts(secrets) * 0.9, secrets, shuffled=control))


def judged(*attacks):
    return judge_results(by_folder(attacks, {}))


def test_what_leaks_and_what_was_not_asked(leak):
    (verdict,) = judged(leak).values()
    found = marks([verdict])
    assert [(mark.question, mark.state) for mark in found] == [
        ("images", "leaks"),
        ("representations", "unasked"),
        ("membership", "unasked"),
        ("properties", "unasked"),
    ]
    assert found[0].words == "leak"


def test_nothing_found_is_a_guess_or_untested_by_its_reasons(leak):
    (verdict,) = judged(leak).values()
    nothing = verdict.model_copy(
        update={
            "kind": "none",
            "reasons": (),
            "compared": tuple(c.model_copy(update={"stands": False}) for c in verdict.compared),
        }
    )
    loose = nothing.model_copy(update={"kind": "untested", "reasons": (Reason(name="no_control"),)})
    assert marks([nothing])[0].state == "none"
    assert marks([nothing, loose])[0].state == "untested"
    assert marks([nothing, loose, verdict])[0].state == "leaks"
    open_vectors = Reason(name="not_excluded", value=0.2, beside=0.02, measure="vectors")
    part = nothing.compared[0].model_copy(update={"measure": "vectors"})
    both = verdict.model_copy(update={"reasons": (open_vectors,), "compared": (*verdict.compared, part)})
    assert [mark.state for mark in marks([both])][:2] == ["leaks", "untested"]
    images = both.model_copy(update={"kind": "vectors", "compared": (*nothing.compared, part)})
    assert [mark.state for mark in marks([images])][:2] == ["none", "untested"]  # a reason speaks of its own question
    assert marks([images])[1].words == "inconclusive"
    asked = nothing.model_copy(update={"converged": None, "kind": "membership"})
    assert [mark.state for mark in marks([asked])] == ["unasked", "unasked", "leaks", "unasked"]
    told = asked.model_copy(update={"kind": "property", "question": "is it its class", "clear": "is it its class"})
    assert marks([told])[3].words == "sent in clear"


def test_a_card_shows_the_strongest_attack_at_fixed_quantiles(leak, tmp_path):
    secrets = truths([1] * 6)
    weak = load_attack(attack(tmp_path / "weak", 1 - firsts(secrets), secrets, attack="weak"))
    verdicts = judged(weak, leak)
    found = findings(by_folder([weak, leak], {}), verdicts)
    (card,) = upload_cards(found, [weak, leak])
    assert card.home == leak.directory
    assert card.finding.short.startswith("Images leak to dip")
    assert [heading for heading, _ in card.strip.headings] == ["10 % quantile", "50 % quantile", "90 % quantile"]
    shown = [short_name(name) for name, _ in card.strip.rows]
    assert shown == ["truth", "attack", "baseline", "control"]
