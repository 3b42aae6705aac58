"""The verb ``check``: whether the answers of results pass a gate, so that a build can fail on a leak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpriv.api.named_code import verb
from fedpriv.api.results import AttackResult, given_folders
from fedpriv.eval.answers import Result, about_of, page_answers
from fedpriv.eval.gate import Check, endpoints_of, gate
from fedpriv.eval.storage import load_scores
from fedpriv.pipeline.result_folders import each_once, result_directories
from fedpriv.reports.page import readable
from fedpriv.reports.report import load_scored
from fedpriv.reports.study_report import read_results
from fedpriv.util import files
from fedpriv.util.errors import UserError


@verb()
def check(
    results: AttackResult | str | Path | Sequence[AttackResult | str | Path],
    *,
    fail_on: str | Sequence[str] = "leak",
    junit: str | Path | None = None,
    allow_code: str | Sequence[str] = (),
) -> Check:
    """Check whether results pass a gate: no leak on the endpoints asked for, and each of them decided.

    Args:
        results: what :func:`fedpriv.attack` returned, or folders that hold results or a study.
        fail_on: ``leak`` for every endpoint, or some of ``leak:membership``, ``leak:reconstruction``, ``leak:property``
            and ``leak:label-disclosure``, with commas between. Or a list. Other endpoints are not looked at.
        junit: file for the outcome as JUnit XML.
        allow_code: modules that may be imported although only a file names them (docs/reliability.md); one or several.

    Raises:
        UserError: where there is no result, or one is damaged: nothing passes unread.
    """
    wanted = endpoints_of(fail_on)
    several = results if isinstance(results, (list, tuple)) else [results]
    made = [one for one in several if isinstance(one, AttackResult)]
    read: dict[Path, Result] = {
        one.path / name: record for one in made for name, record in {**one.records, **one.scores}.items()
    }
    paths = [one for one in several if not isinstance(one, AttackResult)]
    if paths or not made:
        read |= _read(given_folders(paths, ()))
    # Uploads that were handed in are an experiment of their own, whatever other results have in common with them.
    apart = {path: path.parent if about_of(each).premise else None for path, each in read.items()}
    pages = [{path: read[path] for path in read if apart[path] == home} for home in dict.fromkeys(apart.values())]
    outcome = gate([answer for page in pages for answer in page_answers(page)], wanted)
    if junit is not None:
        files.write_text(Path(junit), outcome.junit())
    return outcome


def _read(paths: Sequence[Path]) -> dict[Path, Result]:
    """Return every result in folders, each read in full."""
    kinds, empty = result_directories(paths)
    studies, damaged = readable(kinds["study"], read_results)
    attacks, no_attacks = readable(kinds["attack"], load_scored)
    scores, no_scores = readable(kinds["membership"], load_scores)
    lost = [*damaged, *no_attacks, *no_scores, *(line for study in studies.values() for line in study.left_out)]
    failed = [f"{folder}: {cell}" for folder, study in studies.items() for cell in study.facts.failed]
    if lines := [*empty, *map(str, lost), *failed]:
        raise UserError(lines[0])
    pairs: list[tuple[Path, Result]] = [*attacks.items(), *scores.items()]
    for study in studies.values():
        pairs += [*study.attacks.items(), *study.scores.items()]
    if not pairs:
        raise UserError(f"{paths[0]}: holds no result of an attack; expected a folder that attack or audit made")
    return each_once(pairs)
