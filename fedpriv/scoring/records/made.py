"""Provenance of a result: the attacked upload, the attack, its knowledge, and the worth of the run behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, FiniteFloat, JsonValue

from fedpriv.attacks.observation import ThreatModel
from fedpriv.federation.run_directory import RunConfig
from fedpriv.federation.summary import Communication, DefenseFacts, ReachedAccuracy
from fedpriv.scoring.records.base import RECORD_VERSION
from fedpriv.util.config import Record


class Stage(Record):
    """A stage of training.

    Attributes:
        name: ``early``, ``middle`` or ``converged``.
        round: its round, of how many.
        of: rounds of the run.
        accuracy: pooled accuracy of the run at that round, by when it was taken.
    """

    name: str
    round: int
    of: int
    accuracy: Mapping[str, FiniteFloat]


class Reach(Record):
    """One of the settings of a sweep over the local work behind the upload.

    Attributes:
        setting: as it was asked for: ``1``, ``4``, ``8x1``, ``epoch``.
        label, words: the same for an axis, and for a sentence.
        place: among the settings that were asked for, 0 for the least local work.
        series: the labels of all of them, in order; of one without any result no attack that was run could say anything.
        steps: local steps of the client that took most.
        images: images behind that client's upload, one used twice counted twice.
    """

    setting: str
    label: str
    words: str
    place: int
    series: tuple[str, ...]
    steps: int
    images: int


class Budget(Record):
    """The budget that an attack was given on a list of budgets: which of its options, and its value."""

    field: str
    value: int


class Labels(Record):
    """Labels that a study gives.

    Attributes:
        method, defense: the labels; empty where there are none.
        method_title, defense_title: the same where the study made them up and they hold the registry name already.
    """

    method: str = ""
    defense: str = ""
    method_title: str = ""
    defense_title: str = ""


class Upload(Record):
    """The attacked kind of upload, by its traits.

    Attributes:
        vectors: what attacks recover before they make an image of it.
        separate: whether it holds them one by one and no defense was on, so that nothing has to be recovered.
    """

    vectors: Literal["class prototypes", "representations", "vectors"] = "vectors"
    separate: bool = False


class Training(Record):
    """Accuracy that the attacked run had come to.

    Attributes:
        accuracy: after local training in the attacked round, over all test images, in [0, 1].
        guess: what each client's most frequent class reaches on them.
    """

    accuracy: FiniteFloat
    guess: FiniteFloat


Cause = Literal["", "rows", "means", "steps", "evaluation", "scale", "optimiser"]
"""What a difference between uploads and what the true images give looks like. ``rows``, ``means``, ``steps``: it shows no
more than what the upload holds: outputs of a network, their means over classes, steps of SGD. ``evaluation``: there is none
with batch norm in evaluation mode. ``scale``: it is a factor. ``optimiser``: clients are said to have used another."""


class Premise(Record):
    """Agreement of uploads with what the clients' true images give by the computation that attacks assume.

    Attributes:
        status: ``differs`` where most clients' do, or one's grossly; ``defense`` where clients are said to change uploads.
        cause: of a difference.
        optimiser: that clients are said to have used, for ``optimiser``.
        why: of the first client that could not be checked, or empty.
        cosine, relative_error, factor: between upload and what the truth gives, median over clients that differ, where none
            does over all; the error is over the larger norm. None where no client was checked.
        worst: the largest error of a client.
        allowed: the largest error that rounding, or orders of images that are not known, explain.
        n_clients, n_differ: clients that were checked, and those that differ.
    """

    status: Literal["agrees", "differs", "not checkable", "defense"]
    cause: Cause = ""
    optimiser: str = ""
    why: str = ""
    cosine: FiniteFloat | None = None
    relative_error: FiniteFloat | None = None
    worst: FiniteFloat | None = None
    allowed: FiniteFloat | None = None
    factor: FiniteFloat | None = None
    n_clients: int = 0
    n_differ: int = 0


Units = Literal["clients", "groups"]
"""Independent units: clients, or the groups of clients that were declared to be one each."""


class Identity(Record):
    """Facts that tell results apart, and their worth, in every record.

    Attributes:
        version: of the format.
        target: kind of upload.
        attack, attack_version: registry name, and the version of what it does.
        method, dataset: names; a folder of images goes by its own.
        knowledge: the threat model.
        seed: of the attack and its scoring.
        stage: that was attacked, or None.
        reach: which of several settings of local work was attacked, or None.
        upload: what is known of the kind of upload.
        training: None for uploads that were made elsewhere.
        groups: client -> number of its independent unit, where several are declared to be one; empty where each is one.
        premise: of uploads that were made elsewhere; None of runs of fedpriv itself, which compute what attacks assume.
    """

    version: Literal[4] = RECORD_VERSION
    target: str
    attack: str
    attack_version: int = 1
    method: str
    dataset: str
    knowledge: ThreatModel
    seed: int
    stage: Stage | None = None
    reach: Reach | None = None
    upload: Upload = Upload()
    training: Training | None = None
    groups: Mapping[int, int] = Field(default_factory=dict)
    premise: Premise | None = None

    @property
    def units(self) -> Units:
        """The independent units in a word."""
        return "groups" if self.groups else "clients"

    def unit_of(self, client: int) -> int:
        """Return the independent unit that a client belongs to: itself unless groups were declared."""
        return self.groups.get(client, client)


class Provenance(Identity):
    """Provenance of a result.

    Attributes:
        options: of the attack.
        run: configuration of the attacked run; None for uploads that were made elsewhere.
        images: in words, what was done to how many images of its data set so that all have one shape; empty for nothing.
        defenses: of the run, in the order in which they are applied.
        command: that does the same again, or empty.
        labels: what the study that holds the result calls it; None outside studies.
    """

    options: Mapping[str, JsonValue] = Field(default_factory=dict)
    run: RunConfig | None = None
    images: str = ""
    defenses: tuple[DefenseFacts, ...] = ()
    command: str = ""
    labels: Labels | None = None

    @property
    def defense(self) -> str:
        """The name of the defenses together: ``none``, or their labels."""
        return " + ".join(item.label for item in self.defenses) or "none"

    @property
    def run_seed(self) -> int:
        """Seed of the run; of the attack where the run is not known."""
        return self.seed if self.run is None else self.run.seed


class About(Provenance):
    """``about.json``: how a reconstruction was made.

    Attributes:
        budget: of several, or None.
        caveat: why neither success nor failure of the search says what it otherwise would, or empty.
        run_accuracy: by when it was taken: ``after_training``, ``after_broadcast``, and with the name of other predictors.
        communication: of the run, or None.
        device: where the attack computed.
        files: SHA-256 of the files beside it.
        redacted: the rule by which images were kept out of the files beside it: ``none``, ``blur`` or ``omit``.
    """

    kind: Literal["about"] = "about"
    budget: Budget | None = None
    caveat: str = ""
    run_accuracy: Mapping[str, ReachedAccuracy] = Field(default_factory=dict)
    communication: Communication | None = None
    device: str = ""
    files: Mapping[str, str] = Field(default_factory=dict)
    redacted: Literal["none", "blur", "omit"] = "none"
