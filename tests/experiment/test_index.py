"""``fedpriv report --index``: everything in a folder as an entry, strangers in a line each, links that lead there."""

import json
import os
import shutil

import pytest
from command_line import call
from eval_cases import firsts, reconstruction, stored_attack, truths
from page_cases import Page

import fedpriv
from fedpriv.util.errors import UserError
from fedpriv.util.files import mark

SECRETS = truths([1] * 12)
NAME = "a <b>'quoted\" & odd"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Attacks of which one leaks and one does not, in a folder of an awkward name; a claim's card; a run; strangers."""
    home = tmp_path_factory.mktemp("indexed") / "results"
    seen = firsts(SECRETS)
    permuted = reconstruction(seen.flip(0), per_client=1)
    suite = home / NAME
    mark(suite, "attacks")
    stored_attack(suite / "dip", 0.95 * seen, SECRETS, permuted=permuted)
    stored_attack(suite / "pixels", 0.3 * seen + 0.35, SECRETS, permuted=permuted)
    (suite / "report.html").write_text("its page")
    stored_attack(home / "deep" / "er" / "alone", 0.0 * seen + 0.5, SECRETS, method="fedgh", target="prototype")
    fedpriv.reproduce("fedre-table-2", out=home / "claim")
    fedpriv.train("fedproto", dataset="digits", per_class=8, clients=2, partition="iid", rounds=1, out=home / "run")
    for place in ("photos/2024", "empty"):
        (home / place).mkdir(parents=True)
    (home / "photos" / "2024" / "one.jpg").write_bytes(b"not ours")
    os.utime(home / "deep" / "er" / "alone" / "about.json", (1, 1))
    os.utime(home / "deep" / "er" / "alone" / "metrics.json", (1, 1))
    return home


def articles(page):
    return [attributes for tag, attributes in page.tags if tag == "article"]


def test_every_result_has_an_entry_and_strangers_have_a_line(made, tmp_path):
    written = fedpriv.report(made, index=True, out=tmp_path / "index")
    page = Page(written.pages[0].read_text(encoding="utf-8"))
    entries = {json.loads(one["data-name"]): one for one in articles(page)}
    assert entries.keys() == {NAME, "deep/er/alone", "claim", "run"}
    assert json.loads(entries[NAME]["data-finding"]) == ["some images come back"]
    assert json.loads(entries["deep/er/alone"]["data-method"]) == ["fedgh"]
    assert json.loads(entries["deep/er/alone"]["data-upload"]) == ["prototype"]
    assert [json.loads(entries[name]["data-kind"])[0] for name in ("claim", "run")] == ["claim of a paper", "run"]
    assert "1970-01-01 00:00 UTC" in page.text
    assert sorted(written.notices) == [
        "empty: holds nothing that fedpriv made; not in the index",
        "photos: holds nothing that fedpriv made; not in the index",
    ]
    assert json.loads(articles(page)[-1]["data-name"]) == "deep/er/alone", "the oldest comes last"


def test_links_lead_to_the_own_pages_and_elsewhere_a_command_makes_one(made, tmp_path):
    from urllib.parse import unquote

    out = tmp_path / "out"
    page = Page(fedpriv.report(made, index=True, out=out).pages[0].read_text(encoding="utf-8"))
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a" and "#" not in attributes["href"]]
    assert {(out / unquote(link)).resolve() for link in links} == {
        made / NAME / "report.html",
        made / "claim" / "claim.html",
    }
    assert f"fedpriv report {made / 'deep' / 'er' / 'alone'}" in page.text


def test_an_index_in_the_folder_is_not_indexed_itself(made, tmp_path):
    home = tmp_path / "copy"
    shutil.copytree(made, home)
    first = fedpriv.report(home, index=True, out=home / "index")
    again = fedpriv.report(home, index=True, out=home / "index", force=True)
    assert first.attacks == again.attacks
    assert first.notices == again.notices


def test_names_are_shown_as_they_are(made, tmp_path):
    text = fedpriv.report(made, index=True, out=tmp_path / "index").pages[0].read_text(encoding="utf-8")
    assert "<b>" not in text.replace("<b style", "")
    assert NAME in Page(text).text


def test_another_version_of_the_format_is_named_with_what_to_do(made, tmp_path):
    home = tmp_path / "copy"
    shutil.copytree(made, home)
    (home / NAME / ".fedpriv.jsonl").unlink()
    for name in ("dip", "pixels"):
        (home / NAME / name / ".fedpriv.jsonl").unlink()
    old = home / NAME / "dip" / "metrics.json"
    old.write_text(old.read_text().replace('"version": 4', '"version": 2', 1))
    notices = fedpriv.report(home, index=True, out=tmp_path / "index").notices
    (line,) = [line for line in notices if "format 2" in line]
    assert line.startswith(os.path.join(NAME, "dip") + ": metrics.json: a record of format 2")
    assert f"fedpriv score {old.parent}" in line
    with pytest.raises(UserError, match="strict"):
        fedpriv.report(home, index=True, out=tmp_path / "strict", strict=True)


def test_how_deep_it_looks_and_what_it_does_not_follow(tmp_path):
    home = tmp_path / "home"
    stored_attack(home / "here", 0.9 * firsts(SECRETS), SECRETS)
    stored_attack(home / "1" / "2" / "3" / "4" / "5" / "6" / "7", 0.9 * firsts(SECRETS), SECRETS)
    (home / "around").symlink_to(home)
    found = fedpriv.report(home, index=True, out=tmp_path / "index")
    assert found.attacks == (home / "here",)
    assert [line.partition(":")[0] for line in found.notices] == ["1/2/3/4/5/6", "around"]


def test_redacted_entries_show_nobody(made, tmp_path):
    shown, hidden = (
        fedpriv.report(made, index=True, out=tmp_path / rule, redact=rule).pages[0].read_text(encoding="utf-8")
        for rule in ("none", "omit")
    )
    assert "data:image/png" in shown
    assert "data:image/png" not in hidden


def test_the_command_and_what_it_refuses(made, tmp_path, capsys):
    code, out, err = call(capsys, "report", str(made), "--index", "--out", str(tmp_path / "index"))
    assert (code, out) == (0, f"report: {tmp_path / 'index' / 'index.html'}\n")
    assert err.count("not in the index") == 2
    code, _, err = call(capsys, "report", str(made), "--index", "--target-accuracy", "0.5")
    assert (code, err.count("\n")) == (2, 1)
    assert "--target-accuracy 0.5" in err
    code, _, err = call(capsys, "report", str(made / "photos"), "--index")
    assert (code, err) == (2, f"fedpriv: {made / 'photos'}: holds nothing that fedpriv made\n")
    code, _, err = call(capsys, "report", str(made), "--index", "--out", str(made / NAME / "index"))
    assert code == 2
    assert "overlaps results" in err
