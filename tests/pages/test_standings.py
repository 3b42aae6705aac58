"""Rankings of a leaderboard hold within one card on one data set, and a page tells a place only among enough entries."""

import dataclasses

from entry_cases import entry
from eval_cases import result

from fedpriv.pages.alike import judge_results
from fedpriv.pages.findings import findings
from fedpriv.pages.leaderboard_page import overview, write_page
from fedpriv.pages.standings import ENOUGH, rankings, standing
from fedpriv.scoring.records.made import Reach


def test_entries_are_ranked_within_their_card_and_data_set_only():
    made = [
        entry("fedproto", gain=1.0),
        entry("fedgh", gain=3.0),
        entry("fedtgp", gain=9.0, rounds_seen=5),
        entry("fpl", gain=9.0, dataset="digits"),
    ]
    found = [
        (one.dataset, one.card.rounds_seen, [place.entry.method for place in one.places]) for one in rankings(made)
    ]
    assert found == [("digits", 1, ["fpl"]), ("fashion", 1, ["fedgh", "fedproto"]), ("fashion", 5, ["fedtgp"])]


def test_an_entry_stands_by_its_strongest_attack():
    weak, strong = entry(gain=1.0), entry(gain=4.0)
    both = weak.model_copy(update={"attacks": (*weak.attacks, *strong.attacks)})
    ((place,),) = [one.places for one in rankings([both])]
    assert place.gain == 4.0


def finding_of(gain, **changes):
    """What a page finds on prototypes of the digits by an attack that is so many dB beyond a guess."""
    attack = result("fedproto", gain, **changes)
    results = {attack.directory: attack}
    (found,) = findings(results, judge_results(results))
    return found


def test_a_place_is_told_from_twenty_entries_on():
    some = [entry(f"m{n}", gain=float(n), dataset="digits") for n in range(ENOUGH)]
    found = finding_of(10.2)
    assert standing(found, some[1:]) == ""
    told = standing(found, some)
    assert (
        "Of 20 entries of the leaderboard on prototype uploads of digits under the same card, 11 give away less" in told
    )
    assert "+10.20 here), of which 1 cannot be told apart" in told  # 9.7 to 10.7 overlaps with 9.5 to 10.5


def test_a_place_is_told_among_entries_of_the_same_local_work():
    work = Reach(setting="4", label="4 images", words="one step on 4", place=1, series=("4 images",), steps=1, images=4)
    some = [entry(f"m{n}", gain=float(n), dataset="digits", reach=work) for n in range(ENOUGH)]
    assert standing(finding_of(10.2), some) == ""
    told = standing(dataclasses.replace(finding_of(10.2), setting=work), some)
    assert "on prototype uploads of digits, 4 images under the same card, 11 give away less" in told
    whole = dataclasses.replace(finding_of(10.2), parts=(dataclasses.replace(finding_of(10.2), setting=work),))
    assert standing(whole, some) == told


def test_entries_under_another_card_or_on_other_data_are_no_company():
    others = [entry(f"m{n}", dataset="fashion") for n in range(30)]
    seen = [entry(f"m{n}", dataset="digits", rounds_seen=4) for n in range(30)]
    assert standing(finding_of(10.2), [*others, *seen]) == ""


def test_an_overview_has_marks_and_no_order_of_merit():
    rows = overview([entry("fpl", gain=9.0, p_value=1e-6), entry("fedgh", gain=0.0)])
    assert [row["of"] for row in rows] == ["fedgh", "fpl"]
    assert [row["images"] for row in rows] == ["○ no better than a guess", "● leak"]
    assert rows[0]["accuracy"] == "87.5 %"
    assert rows[0]["size"] == "2.05 kB"


def test_pages_escape_what_an_entry_says(tmp_path):
    hostile = entry(gain=2.0, entered_by="<script>alert(1)</script>", source="[x](javascript:alert(1)) | y")
    page, markdown = write_page(
        [hostile, entry("fedgh", gain=-1.0)], tmp_path, remarks=["<img src=x onerror=alert(1)>"]
    )
    text = page.read_text()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;" in text
    assert "<img" not in markdown.read_text()
    assert "| fedgh | fashion | ○ no better than a guess | – not asked |" in markdown.read_text()
