"""Names from outside stay names: on every page, in Markdown, in tables and in pictures, whatever they hold."""

import itertools
import string
import xml.etree.ElementTree as ElementTree
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from eval_cases import ABOUT, asked, but, defended, federated, firsts, reconstruction, truths
from hostile_cases import HOSTILE, Skeleton, Written, as_cell, cells, plain, steers
from hypothesis import given
from hypothesis import strategies as st
from run_cases import entangled, make_run

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.datasets.federated import PartitionOptions
from fedpriv.federation.answer import Answer
from fedpriv.federation.run_directory import RunConfig
from fedpriv.pages.guarantees import Guarantee
from fedpriv.pages.page import environment
from fedpriv.pages.report import StudyFacts, UnfinishedCell, write_report
from fedpriv.pages.runs_report import write_runs_report
from fedpriv.pages.study_settings import StudySettings, toml
from fedpriv.scoring.records import Labels
from fedpriv.scoring.records.made import Budget
from fedpriv.scoring.score import score
from fedpriv.scoring.storage import save_attack
from fedpriv.util.escape import code_block, code_span, csv_cell, markdown, markup, picture_text, shell_word, visible

RECORDED = tuple(name for name in HOSTILE if "\ud800" not in name)
"""A record holds no half of a character: the surrogates are refused where it is made."""

WRITTEN = 18
"""The field that stands in TOML, which spells some characters in its own way."""

FIELDS = 21
"""Names that a page of :func:`attacks_page` and :func:`study` shows."""


@cache
def scored_once(seed):
    """An attack and its control, scored."""
    secrets = truths([1] * 4, seed=seed)
    found = reconstruction(firsts(secrets) * (1 - 0.1 * seed), per_client=1)
    permuted = reconstruction(firsts(secrets).roll(2, 0), per_client=1)
    return found, permuted, secrets, score(found, secrets, permuted, seed=0, about=ABOUT)


def attack(home, seed, **about):
    found, permuted, secrets, record = scored_once(seed)
    about = but(ABOUT, **about)
    shared = {name: getattr(about, name) for name in type(record).model_fields if hasattr(about, name)}
    shared.pop("kind")
    record = but(record, **shared)
    save_attack(home, reconstruction=found, truths=secrets, about=about, permuted=permuted, metrics=record)
    return home


def attacks_page(home, names):
    """Write a report over three attacks, of two uploads and two budgets, and two inferences; return its folder."""
    n = iter(names)
    method, dataset, name, option = next(n), next(n), next(n), next(n)
    guard = but(
        defended(scale=0.3),
        **{"label": next(n), "source": next(n), "guarantee": next(n)},
        answers=(Answer(("dip",), ("representation",), note=next(n)),),
    )
    shared = {
        **{"dataset": dataset, "target": "representation"},
        "knowledge": KnowledgeCard(attacker_data="other_domain", foreign=next(n)),
    }
    bare = federated("fedproto") | {"run": RunConfig(method="fedproto", dataset="folder", clients=10, models=next(n))}
    under = federated("fedproto", accuracy=0.8, scalars=50.0) | {"defenses": (guard,)}
    under["run"] = RunConfig(
        method="fedproto", dataset="digits", clients=10, partition=PartitionOptions(name="iid"), options={option: 1}
    )
    homes = [
        attack(home / "a" / "one", 0, attack=name, method=method, command=next(n), **shared, **bare)
        if value is None
        else attack(
            home / "a" / f"two-{value}",
            1,
            **{"attack": name, "method": method, "command": "again", "options": {"steps": value}},
            **{"budget": Budget(field="steps", value=value), **shared, **under},
        )
        for value in (None, 10, 20)
    ]
    members, owner = next(n), next(n)
    scores = []
    for kind in ("membership", "property"):
        record = asked(kind, command=members, method=owner, dataset=dataset, target="representation")
        scores.append(home / "a" / kind)
        scores[-1].mkdir(parents=True)
        (scores[-1] / f"{kind}.json").write_text(record.model_dump_json())
    labels = {homes[0].resolve(): Labels(method=next(n), defense=next(n))}
    failed = UnfinishedCell(next(n), next(n), "none", "representation", 0, "failed", next(n))
    written = {"methods": [next(n)]}
    facts = StudyFacts(
        cells=2,
        failed=(failed,),
        privacy=(Guarantee(next(n), (("given", "luck"),)),),
        commands=(next(n),),
        settings=(StudySettings("study.toml", toml(written), "{}"),),
        labels=labels,
    )
    write_report(homes, home / "page", scores, study=facts)
    return home / "page"


def outside_pictures(tags):
    """The elements of a page but for the insides of charts, where a name decides where its label goes."""
    found, within = Counter(), False
    for tag in tags:
        within = within or tag[0] == "svg"
        if not within:
            found[tag] += 1
        else:
            assert tag[0].lstrip("/") in {"svg", "rect", "path", "line", "text", "circle", "g", "tspan"}, tag
            assert not {one for one in tag[1:] if one.startswith("on") or one.endswith("href")}, tag
        within = within and tag[0] != "/svg"
    return found


def harmless(number):
    return f"name-{number}-here"


@cache
def reference(maker, folder):
    """The page of names that are nothing but names."""
    return files_of(maker(folder, map(harmless, itertools.count())))


def files_of(page):
    return {path.name: path.read_bytes().decode() for path in page.iterdir() if path.suffix != ".png"}


def there(names, expected):
    """The names that the page shows where they are harmless."""
    found = [name for number, name in enumerate(names) if name is not None and harmless(number) in expected.text]
    assert len(found) > len(names) / 2
    return found


def without_slug(link):
    """The address of a picture, in whose name letters and digits of an attack's name may stand, without these."""
    assert set(link) <= set(string.ascii_letters + string.digits + "-."), link
    return link[:9] if link.startswith("budget-") else link


def check_pages(made, known, names):
    """The elements and links are those of a page of harmless names, and the text holds each name."""
    for file in (one for one in made if one.endswith(".html")):
        found, expected = Skeleton(made[file]), Skeleton(known[file])
        assert outside_pictures(found.tags) == outside_pictures(expected.tags)
        assert Counter(found.values) == Counter(expected.values)
        assert [name for name in there(names, expected) if " ".join(visible(name).split()) not in found.text] == []
    for file in (one for one in made if one.endswith(".md")):
        found, expected = Written(made[file]), Written(known[file])
        assert Counter(found.tags) == Counter(expected.tags)
        assert sorted(map(without_slug, found.links)) == sorted(map(without_slug, expected.links))
        assert [name for name in there(names, expected) if plain(name) not in found.text] == []
    for file in (one for one in made if one.endswith(".csv")):
        assert len(cells(made[file])) == len(cells(known[file]))
    for file in (one for one in made if one.endswith(".svg")):
        root = ElementTree.fromstring(made[file])
        assert not [one for one in root.iter() if str(one.tag).endswith(("script", "foreignObject", "}a"))]
        assert not [name for one in root.iter() for name in one.attrib if name.lower().startswith("on")]
    for file, text in made.items():
        assert not steers(text.replace("\t", "").replace("\u200d", "")), file


def shifts():
    """As many rows of names as it takes for each name to stand in some field, whatever stands in the others."""
    return range(0, len(RECORDED), FIELDS)


@pytest.mark.parametrize("shift", shifts())
def test_pages_over_attacks(shift, tmp_path, tmp_path_factory):
    known = reference(attacks_page, tmp_path_factory.getbasetemp() / "reference-attacks")
    chosen = list(itertools.islice(itertools.cycle(RECORDED), shift, shift + FIELDS))
    made = files_of(attacks_page(tmp_path, iter(chosen)))
    assert set(made) >= {"report.html", "report.md", "results.csv", "frontier.svg", "frontier.csv"}
    check_pages(made, known, [None if place == WRITTEN else name for place, name in enumerate(chosen)])
    table = cells(made["results.csv"])
    shown = {cell for row in table[1:] for cell in row}
    for place in (0, 1, 2):  # method, data set, attack
        assert as_cell(chosen[place]) in shown


def runs_page(home, names):
    """Write a report over two runs; return its folder."""
    n = iter(names)
    models, options, folder = next(n), {next(n): next(n)}, next(n)
    one = make_run(home / "a", models=models, options=options)
    two = make_run(home / "b", "fedre", entangled, models=next(n), seed=1, dataset="folder", data_dir=folder)
    write_runs_report([one, two], home / "page")
    return home / "page"


@pytest.mark.parametrize("shift", range(0, len(RECORDED), 5))
def test_pages_over_runs(shift, tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.setattr("fedpriv.pages.runs_report.prototype_map", lambda run: "no prototypes were uploaded")
    known = reference(runs_page, tmp_path_factory.getbasetemp() / "reference-runs")
    chosen = list(itertools.islice(itertools.cycle(RECORDED), shift, shift + 5))
    made = files_of(runs_page(tmp_path, iter(chosen)))
    assert set(made) >= {"runs.html", "runs.md", "runs.csv"}
    chosen[3] = Path(chosen[3]).name  # a folder of images goes by its own name
    check_pages(made, known, chosen)
    shown = {cell for row in cells(made["runs.csv"])[1:] for cell in row}
    assert {as_cell(chosen[0]), as_cell(chosen[4])} <= shown


# ---------------------------------------------------------------- one function for each kind of output

TEXTS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.sampled_from("\\`*_~#>|$@[]()<&!-+=.:;0123456789 ab\n\t\rw/\"'{}%^"), max_size=30),
    st.text(max_size=20),
)


@given(TEXTS)
def test_a_name_is_its_text_in_every_place_of_markdown(name):
    places = {
        "{}": "p",
        "# {}": "h1",
        "- **{}: x** y": "ul li strong",
        "| a | b |\n| --- | --- |\n| {} | c |": "td",
        "x {} y": "p",
        "![{}](a.svg)": "img",
    }
    for place, _ in places.items():
        found, known = Written(place.replace("{}", markdown(name))), Written(place.replace("{}", "name"))
        assert " ".join(found.text.split()) == " ".join(known.text.replace("name", plain(name)).split())
        if plain(name):
            assert found.tags == known.tags
            assert found.links == known.links


@given(TEXTS)
def test_code_is_its_text_in_a_line_and_in_lines(name):
    inline, block = Written(f"x {code_span(name)} y"), Written(f"x\n\n{code_block(name)}\n\ny")
    assert inline.text == " ".join(f"x {plain(name)} y".split())
    assert inline.tags == ["p", "code", "/code", "/p"]
    shown = " ".join(" ".join(map(visible, name.replace("\r", "\n").split("\n"))).split())
    assert block.text == " ".join(f"x {shown} y".split())
    assert set(block.tags) <= {"p", "/p", "pre", "/pre", "code", "/code"}


@given(TEXTS)
def test_html_takes_a_name_in_an_element_and_in_an_attribute(name):
    home = environment(autoescape=True)
    template = home.from_string('<p class="{{ name }}">{{ name }}</p>')
    found = Skeleton(template.render(name=name))
    assert found.tags == [("p", "class"), ("/p",)]
    assert found.text == " ".join(visible(name).split())
    assert ElementTree.fromstring(f'<g a="{markup(name)}">{markup(name)}</g>').text in (
        plain(name),
        plain(name) or None,
    )


@given(TEXTS)
def test_a_table_takes_a_name_and_gives_it_back(name):
    cell = csv_cell(name)
    assert cell in (plain(name), "'" + plain(name))
    assert (cell == plain(name)) is not cell.startswith("'")  # so that an apostrophe in front is always ours
    assert not cell.startswith(("=", "+", "-", "@"))
    assert csv_cell(-1.5) == -1.5


@given(TEXTS)
def test_a_picture_takes_a_name(name):
    from matplotlib import cbook

    shown = picture_text(name)
    assert not cbook.is_math_text(shown)
    assert shown.replace("\\$", "$").lstrip() == (plain(name) if len(plain(name)) <= 100 else plain(name)[:99] + "…")


def test_names_are_drawn_letter_by_letter(recwarn):
    from fedpriv.pages.curves import Line, accuracy_by_scalars

    x = np.arange(1.0, 3.0)
    for names in (HOSTILE[::2], HOSTILE[1::2]):
        drawn = accuracy_by_scalars([Line(name, x, x, x, x) for name in names], names[0])
        assert drawn.count("<!-- ") >= len(names)  # matplotlib notes beside its paths what they spell
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert not list(recwarn)


@given(TEXTS.filter(lambda name: "\x00" not in name and "\ud800" not in name))
def test_a_word_of_a_command_is_one_line_and_the_shell_gives_it_back(name):
    word = shell_word(name)
    assert "\n" not in word
    assert not steers(word.replace("\u200d", "").replace("\u200c", "").replace("\xa0", ""))


def test_a_shell_reads_the_words_as_they_were(tmp_path):
    import os
    import shutil
    import subprocess

    if shutil.which("bash") is None:
        pytest.skip("no bash")
    names = [name for name in HOSTILE if "\x00" not in name and "\ud800" not in name]
    script = "printf '%s\\0' " + " ".join(map(shell_word, names))
    told = subprocess.run(
        ["bash", "-c", script], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
    )
    assert [os.fsdecode(one) for one in told.stdout.split(b"\0")[:-1]] == names
