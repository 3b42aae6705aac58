"""A gate on answers: pass, leak or inconclusive, so that a build can fail on a leak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from fedpriv.eval.answers import Answer
from fedpriv.eval.endpoints import ENDPOINTS, Endpoint
from fedpriv.eval.words import sentence
from fedpriv.util.errors import UserError, shown, unknown_name

Status = Literal["pass", "leak", "inconclusive"]

EXIT_CODES: dict[Status, int] = {"pass": 0, "leak": 3, "inconclusive": 4}
"""Of the command; 4 must not be taken for a pass."""

NOT_MEASURED = ("not run", "")
"""Why an answer is missing that could be had; every other reason says that nothing is there to leak, or no way to it."""


@dataclass(frozen=True)
class Check:
    """The outcome of a gate.

    Attributes:
        answers: that were looked at: leaks first, then what is inconclusive or was not measured, then the others.
        missing: of the uploads, endpoints that no attack was run on, in words, a line each.
    """

    answers: tuple[Answer, ...]
    missing: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """``leak`` if any answer is one; else ``inconclusive`` if any is that, or is missing; else ``pass``."""
        verdicts = {answer.verdict for answer in self.answers}
        if "leak" in verdicts:
            return "leak"
        return "inconclusive" if "inconclusive" in verdicts or self.missing else "pass"

    @property
    def exit_code(self) -> int:
        """Exit code of ``fedpriv check``: 0, 3 for a leak, 4 for inconclusive."""
        return EXIT_CODES[self.status]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons against a pass, a sentence each, leaks first."""
        return (*(_words(one) for one in self.answers if one.verdict != "no leak detected"), *self.missing)

    def __str__(self) -> str:
        return "\n".join([f"check: {self.status}", *(self.reasons or [_words(one) for one in self.answers])])

    def junit(self) -> str:
        """Return the answers as JUnit XML: a leak is a failure, what is inconclusive or missing is skipped, and why."""
        outcomes = {"leak": "failure", "inconclusive": "skipped"}
        rows: list[tuple[str, str, str | None, str]] = []
        for one in self.answers:
            name = ", ".join(filter(None, (one.endpoint, one.threat, one.estimand)))
            rows.append((one.target, name, outcomes.get(one.verdict), _words(one)))
        rows += [("missing", line, "skipped", line) for line in self.missing]
        suite = ElementTree.Element("testsuite", name="fedpriv")
        for target, name, outcome, message in rows:
            case = ElementTree.SubElement(suite, "testcase", classname=f"fedpriv.{target}", name=name)
            if outcome is not None:
                ElementTree.SubElement(case, outcome, message=message)
        counts = {"tests": "testcase", "failures": "testcase/failure", "skipped": "testcase/skipped"}
        for name, place in counts.items():
            suite.set(name, str(len(suite.findall(place))))
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _words(answer: Answer) -> str:
    return f"{answer.target}: {sentence(answer)}"


def gate(answers: Iterable[Answer], wanted: Sequence[Endpoint]) -> Check:
    """Return the outcome of a gate on some endpoints."""
    looked_at = [answer for answer in answers if answer.endpoint in wanted]
    order = ["leak", "inconclusive", "no leak detected"]
    asked = sorted((one for one in looked_at if one.verdict in order), key=lambda one: order.index(one.verdict))
    there = {(one.upload, one.endpoint) for one in asked}
    lost = [one for one in looked_at if one.why in NOT_MEASURED and (one.upload, one.endpoint) not in there]
    lines = dict.fromkeys(f"{one.target}: {one.endpoint} was not measured: no attack on it was run" for one in lost)
    return Check(tuple(asked), tuple(lines))


def endpoints_of(fail_on: str | Sequence[str]) -> tuple[Endpoint, ...]:
    """Return the endpoints on which a leak fails.

    >>> endpoints_of("leak:membership,leak:label-disclosure")
    ('membership', 'label disclosure')
    """
    every = {name.replace(" ", "-"): name for name in ENDPOINTS}
    chosen: dict[Endpoint, None] = {}
    for item in fail_on.split(",") if isinstance(fail_on, str) else fail_on:
        word, colon, name = str(item).strip().partition(":")
        if word != "leak":
            raise UserError(f"fail_on={shown(item)}: expected leak, or leak:ENDPOINT with one of {', '.join(every)}")
        if colon and name.replace(" ", "-") not in every:
            raise unknown_name("endpoint in fail_on", name, every)
        chosen |= dict.fromkeys([every[name.replace(" ", "-")]] if colon else every.values())
    return tuple(chosen)
