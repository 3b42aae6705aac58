"""The verb ``guard``: a client attacks its own update before it is sent, by a fixed number of iterations.

One client can speak of its own images alone: intervals go over images. A leak is a primary attack's advantage beyond the
least effect (Holm over endpoints), or an image that came back. To pass takes what ``no leak detected`` takes on a page: a
bound below the least effect, the premise, and a search that got as far as the true images. One cut short is inconclusive.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from fedpriv.api.attacking import UploadSettings
from fedpriv.api.named_code import verb
from fedpriv.attacks import ATTACKS, attacks_for
from fedpriv.eval.answers import Answer, page_answers
from fedpriv.eval.gate import NOT_MEASURED, Status, endpoints_of, gate
from fedpriv.eval.score import beyond_guesses
from fedpriv.eval.storage import load_attack
from fedpriv.eval.words import sentence
from fedpriv.pipeline.plan import attack_names, target_name
from fedpriv.pipeline.suites import attack_source
from fedpriv.sources.door import read_uploads
from fedpriv.sources.external import ExternalSource
from fedpriv.sources.messages import Gradient, Update
from fedpriv.sources.source import batch_norms
from fedpriv.study.saving import place
from fedpriv.study.settings import refuse_small
from fedpriv.uploads.kinds import NETWORKS
from fedpriv.uploads.payload import Payload
from fedpriv.util.config import texts
from fedpriv.util.errors import UserError

ITERATIONS = 300
"""Of searches by default; :func:`fedpriv.doctor` proposes how many fit the machine."""

FEW_IMAGES = 8
"""Most images of an update that are searched for unasked: of more, a short search finds nothing."""

CAME_BACK = 6.0
"""Decibels above the strongest guess at an image from which on it came back: in 2 of 100 updates of other images one of 16
seemed to (``docs/calibration.md``)."""

JUDGED = ("leak:reconstruction", "leak:membership", "leak:label-disclosure")

ADVICE: dict[str, str] = {
    "membership": "pass held_out, images of the same classes that the client did not train on",
    "reconstruction": f"of more than {FEW_IMAGES} images a search takes long; attacks=['inverting-gradients'] makes it",
}


@dataclass(frozen=True)
class GuardResult:
    """What a client's attack on its own update found; it is about these images alone.

    Attributes:
        status: ``leak``, ``inconclusive``, or ``pass``: no leak detected on any endpoint that was asked for.
        reasons: a line for each finding.
        answers: on the endpoints that were asked for and attacked, each with its number and its 95 % interval over images.
        n_images: private images that were handed in.
        came_back: of these, how many came back.
        iterations: of the searches, 0 where none was made.
        seconds: wall seconds.
        notices: what was left out, and why.
    """

    status: Status
    reasons: tuple[str, ...]
    answers: tuple[Answer, ...]
    n_images: int
    came_back: int
    iterations: int
    seconds: float
    notices: tuple[str, ...] = ()

    def __str__(self) -> str:
        images = "this 1 image" if self.n_images == 1 else f"these {self.n_images} images"
        search = f"{self.iterations} iterations" if self.iterations else "no search"
        about = f"about {images} alone, and no other client; {search}, {self.seconds:.1f} s"
        word = "no leak detected" if self.status == "pass" else self.status
        return "\n".join([f"guard: {word} ({about})", *self.reasons])


@verb(UploadSettings)
def guard(
    upload: Any,
    *,
    images: Any,
    labels: Any = None,
    auxiliary: Any = None,
    target: str | None = None,
    extractor: Any = None,
    fail_on: str | Sequence[str] = JUDGED,
    attacks: str | Sequence[str] = (),
    **settings: Unpack[UploadSettings],
) -> GuardResult:
    """Attack a client's own update before it is sent, and say whether it leaks these images.

    Unasked, cheap attacks run. On weights and gradients: the closed form where the first layer is fully connected, else a
    search for at most ``FEW_IMAGES`` images; labels; membership where there is ``held_out``. On other kinds: the first look.

    Args:
        upload: one upload as of :func:`fedpriv.attack_uploads`.
        images: the client's images behind it, ``(n, c, h, w)`` in [0, 1], or a data set.
        labels: ``(n,)`` their classes.
        auxiliary: images that the upload was not computed from, for baselines (default: those of ``held_out``).
        target: kind of upload (default: the payload's; of :class:`Update` and :class:`Gradient` ``model``).
        extractor: network behind prototypes and representations.
        fail_on: endpoints to judge, as of :func:`fedpriv.check`; one that was not measured is inconclusive.
        attacks: names of attacks that run besides the cheap ones, on other kinds in the place of the first look.
        settings: see :class:`UploadSettings`: ``model``, ``batch``, ``iterations`` of each search (default ``ITERATIONS``).
            Without ``out`` nothing stays on the disk.
    """
    begun, iterations = time.perf_counter(), settings.get("iterations") or ITERATIONS
    refuse_small(settings, ("iterations",))
    if "redact" in settings:
        raise UserError("redact: a guard measures images that came back; drop it")
    if target is None and not isinstance(upload, (Payload, Update, Gradient)):
        what = "fedpriv.Gradient(...), fedpriv.Update(before, after), a payload, or target= of it"
        raise UserError(f"target: missing; a {type(upload).__name__} does not say its kind: pass {what}")
    if isinstance(upload, Update) and settings.get("batch") is None:
        raise UserError(
            "batch: missing; pass fedpriv.BatchFacts(batch_size=, learning_rate=, steps=) of the local steps"
        )
    wanted, kind = endpoints_of(fail_on), target_name(str(target or getattr(upload, "kind", "model")))
    if auxiliary is None:
        auxiliary = settings.get("held_out")
        if isinstance(auxiliary, tuple) and len(auxiliary) == 2:
            auxiliary, settings["auxiliary_labels"] = auxiliary
    if auxiliary is None:
        raise UserError("auxiliary: missing; pass images that the upload was not computed from, or held_out")
    source = read_uploads(upload, kind, images, labels, extractor, auxiliary, settings, per_image=True)
    if len(source.newest) > 1:
        raise UserError(f"upload: {len(source.newest)} clients' given; a guard is of one client's")
    own = source.images[source.newest[0].client]
    cheap = _cheap(source) if kind in NETWORKS else ()
    chosen = tuple(dict.fromkeys((*texts("attacks", attacks), *cheap)))
    names = attack_names(kind, chosen) if chosen or kind not in NETWORKS else ()
    searched = any(ATTACKS.load(name).budget for name in names)
    whole: dict[str, Any] = {**settings, "attacks": chosen, "iterations": iterations if searched else None}
    folder, scratch = place(settings.get("out"))
    records, scores, notices = attack_source(source, whole, folder, pages=scratch is None) if names else ({}, {}, ())
    came_back = 0
    for stored in [load_attack(folder / name) for name in records]:
        assert stored.truths is not None
        gains = beyond_guesses(stored.reconstruction, stored.truths, stored.about.seed)
        came_back = max(came_back, int((gains >= CAME_BACK).sum()))
    del scratch
    if len(own.labels.unique()) == source.n_classes:  # nothing to disclose
        wanted = tuple(endpoint for endpoint in wanted if endpoint != "label disclosure")
    answers = page_answers({**records, **scores})
    judged = gate(answers, wanted).answers
    back = came_back > 0 and "reconstruction" in wanted
    above = f"{CAME_BACK:g} dB or more above any guess"
    reasons = [f"Reconstruction: leak: {came_back} of {len(own)} images came back, {above}."] if back else []
    # What a mean over images leaves open is settled by one that came back.
    reasons += [
        sentence(one) for one in judged if one.verdict == "leak" or not (back and one.endpoint == "reconstruction")
    ]
    open_ = {answer.endpoint for answer in answers if answer.why in NOT_MEASURED} if answers else set(wanted)
    lost = [endpoint for endpoint in wanted if endpoint in open_ - {answer.endpoint for answer in judged}]
    reasons += [f"{one.capitalize()} was not measured: {ADVICE.get(one, 'pass attacks')}." for one in lost]
    verdicts = {answer.verdict for answer in judged}
    undecided = lost or "inconclusive" in verdicts or (wanted and not judged)
    return GuardResult(
        status="leak" if back or "leak" in verdicts else "inconclusive" if undecided else "pass",
        reasons=tuple(reasons),
        answers=judged,
        n_images=len(own),
        came_back=came_back,
        iterations=iterations if any(record.cost.iterations > 1 for record in records.values()) else 0,
        seconds=time.perf_counter() - begun,
        notices=tuple(notices),
    )


def _cheap(source: ExternalSource) -> tuple[str, ...]:
    """Return the attacks on trained weights that cost little."""
    client, model = source.newest[0].client, source.model
    assert model is not None
    own, held = source.images[client].labels, source.held_out.get(client)
    first = next((values.ndim for values in model.parameters() if values.ndim > 1), 0)
    closed = first == 2 and not batch_norms(model)
    runs = {
        "linear-layer": closed,
        "inverting-gradients": not closed and len(own) <= FEW_IMAGES,
        "labels": len(own.unique()) < source.n_classes,
        "membership": held is not None and bool((held.labels[:, None] == own).any()),
    }
    fitting = attacks_for(source.kind)
    return tuple(name for name, runs_here in runs.items() if runs_here and name in fitting)
