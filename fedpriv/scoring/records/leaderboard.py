"""An entry of a leaderboard: one upload, the attacks on it as they were judged, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, FiniteFloat, JsonValue

from fedpriv.attacks.observation import KnowledgeCard
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.summary import DefenseFacts
from fedpriv.scoring.records.base import RECORD_VERSION, SCORING_VERSION
from fedpriv.scoring.records.made import Reach
from fedpriv.scoring.records.verdict import Verdict
from fedpriv.util.record import Record


class EnteredAttack(Record):
    """An attack of an entry, over all its seeds.

    Attributes:
        name, version: registry name, and the version of what it does.
        options: its own.
        knowledge: the card under which it ran; entries are ranked within one card only.
        verdict: on it, judged together with the other attacks of the entry.
    """

    name: str
    version: int
    options: Mapping[str, JsonValue]
    knowledge: KnowledgeCard
    verdict: Verdict


class LeaderboardEntry(Record):
    """``leaderboard/PAYLOAD/METHOD.json``.

    Attributes:
        version: of the format of all records.
        scoring_version: of what the numbers mean.
        target: kind of upload.
        method, dataset: names; a folder of images goes by its own.
        source: where the method is described, for one that this package lacks; else empty.
        entered_by: whose measurement it is, or empty.
        defenses: of the run, in the order in which they are applied.
        run: configuration of the attacked run under its first seed, without folders of the machine; None for uploads that
            were made elsewhere.
        seeds: of the runs.
        accuracy: pooled over clients after the last round, mean over seeds, in [0, 1]; by when it was taken.
        upload_bytes: of one taking part in one round, everything counted; None where it is not known.
        reach: the local work behind the upload, where the result asks how far a leak reaches; else None.
        attacks: on the upload.
        commands: that do the same again, without folders of the machine.
        versions: of the packages that scored.
    """

    kind: Literal["leaderboard-entry"] = "leaderboard-entry"
    version: Literal[3] = RECORD_VERSION
    scoring_version: int = SCORING_VERSION
    target: str
    method: str
    dataset: str
    source: str = ""
    entered_by: str = ""
    defenses: tuple[DefenseFacts, ...] = ()
    run: RunConfig | None = None
    seeds: tuple[int, ...]
    accuracy: Mapping[str, FiniteFloat] = Field(default_factory=dict)
    upload_bytes: FiniteFloat | None = None
    reach: Reach | None = None
    attacks: tuple[EnteredAttack, ...]
    commands: tuple[str, ...]
    versions: Mapping[str, str]

    @property
    def defense(self) -> str:
        """The name of the defenses together: ``none``, or their labels."""
        return " + ".join(one.label for one in self.defenses) or "none"

    @property
    def title(self) -> str:
        """The upload in a table: its method, with the defense and the local work where these are told."""
        work = "" if self.reach is None else self.reach.label
        return ", ".join(part for part in (self.method, self.defense if self.defenses else "", work) if part)
