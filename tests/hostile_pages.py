"""Pages that show a name in every field that comes from outside, and what must be true of them."""

import itertools
import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from functools import cache

from eval_cases import ABOUT, asked, but, defended, federated, firsts, reconstruction, truths
from hostile_cases import HOSTILE, Skeleton, Written, cells, plain, steers
from run_cases import entangled, make_run

from fedpriv.attacks.observation import ThreatModel
from fedpriv.datasets.partition import PartitionOptions
from fedpriv.eval.records import Labels
from fedpriv.eval.score import score
from fedpriv.eval.storage import load_attack, load_scores, save_attack
from fedpriv.federation.answer import Answer
from fedpriv.federation.run_directory import RunConfig
from fedpriv.reports.privacy import Guarantee
from fedpriv.reports.report import StudyFacts, UnfinishedCell, write_results
from fedpriv.reports.runs_report import write_runs_report
from fedpriv.util.escape import visible

RECORDED = tuple(name for name in HOSTILE if "\ud800" not in name)
"""A record holds no half of a character: the surrogates are refused where it is made."""

WRITTEN = 18
"""The field that stands in JSON, which spells some characters in its own way."""

FIELDS = 21
"""Names that a page of :func:`attacks_page` and :func:`study` shows."""


@cache
def scored_once(seed):
    """An attack and its control, scored."""
    secrets = truths([1] * 4, seed=seed)
    found = reconstruction(firsts(secrets) * (1 - 0.1 * seed), per_client=1)
    shuffled = reconstruction(firsts(secrets).roll(2, 0), per_client=1)
    return found, shuffled, secrets, score(found, secrets, shuffled, seed=0, about=ABOUT)


def attack(home, seed, **about):
    found, shuffled, secrets, record = scored_once(seed)
    about = but(ABOUT, **about)
    shared = {name: getattr(about, name) for name in type(record).model_fields if hasattr(about, name)}
    shared.pop("kind")
    record = but(record, **shared)
    save_attack(home, reconstruction=found, truths=secrets, about=about, shuffled=shuffled, metrics=record)
    return home


def attacks_page(home, names):
    """Write a report over three attacks, of two uploads and two numbers of steps, and two inferences; return its folder."""
    n = iter(names)
    method, dataset, name, option = next(n), next(n), next(n), next(n)
    guard = but(
        defended(scale=0.3),
        **{"label": next(n), "source": next(n), "guarantee": next(n)},
        answers=(Answer(("dip",), ("representation",), note=next(n)),),
    )
    shared = {
        **{"dataset": dataset, "target": "representation"},
        "knowledge": ThreatModel(attacker_data="same_domain"),
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
            **{**shared, **under},
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
        settings=(("study.toml", json.dumps(written, ensure_ascii=False)),),
        labels=labels,
    )
    read = {folder: load_scores(folder) for folder in scores}
    write_results([load_attack(one) for one in homes], read, home / "page", study=facts)
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
    assert len(found) > len(names) / 3
    return found


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
        assert sorted(found.links) == sorted(expected.links)
        assert [name for name in there(names, expected) if plain(name) not in found.text] == []
    for file in (one for one in made if one.endswith(".csv")):
        assert len(cells(made[file])) == len(cells(known[file]))
    for file in (one for one in made if one.endswith(".svg")):
        root = ElementTree.fromstring(made[file])
        assert not [one for one in root.iter() if str(one.tag).endswith(("script", "foreignObject", "}a"))]
        assert not [name for one in root.iter() for name in one.attrib if name.lower().startswith("on")]
    for file, text in made.items():
        assert not steers(text.replace("\t", "").replace("\u200d", "")), file


def runs_page(home, names):
    """Write a report over two runs; return its folder."""
    n = iter(names)
    models, options, folder = next(n), {next(n): next(n)}, next(n)
    one = make_run(home / "a", models=models, options=options)
    two = make_run(home / "b", "fedre", entangled, models=next(n), seed=1, dataset="folder", data_dir=folder)
    write_runs_report([one, two], home / "page")
    return home / "page"
