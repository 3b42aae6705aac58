"""The verb ``guard``: a client attacks its own update before it is sent, by a fixed number of iterations.

One client can speak of its own images alone: intervals go over images. A leak is a primary attack's advantage beyond the
least effect (Holm over endpoints), or an image that came back. ``No leak detected`` takes what it takes on a page: a bound
below the least effect, the premise, and a search that got as far as the true images do. One cut short is inconclusive.
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
from fedpriv.sources.source import batch_norms
from fedpriv.study.saving import place
from fedpriv.study.settings import refuse_small
from fedpriv.uploads.kinds import NETWORKS
from fedpriv.util.config import texts
from fedpriv.util.errors import UserError

ITERATIONS = 300
"""Of searches, unless the caller says otherwise; :func:`fedpriv.doctor` proposes how many fit the machine."""

FEW_IMAGES = 8
"""Most images of an update that are searched for; with more a short search finds nothing, and closed forms alone run."""

CAME_BACK = 6.0
"""An image so many dB above the strongest guess at it has come back: of 16 images at a time the best was never more than
4.8 dB above in 150 updates of other images of their classes (``benchmarks/guard.py``)."""

JUDGED = ("leak:reconstruction", "leak:membership", "leak:label-disclosure")
"""Endpoints that a guard judges by itself."""


ADVICE: dict[str, str] = {
    "membership": "pass held_out, images of the same classes that the client did not train on",
    "reconstruction": f"unasked, at most {FEW_IMAGES} images are searched for; pass attacks",
}
"""What would let an endpoint be measured."""


@dataclass(frozen=True)
class GuardResult:
    """What a client's attack on its own update found. It is about these images alone.

    Attributes:
        status: ``leak``, ``inconclusive`` or ``pass`` (no leak detected on any endpoint that was asked for).
        reasons: a line for each finding, leaks first; of a pass the bounds.
        answers: on each endpoint that was asked for and attacked, with its number and its 95 % interval over images.
        n_images: private images that were handed in.
        came_back: of those that were attacked, how many came back: ``CAME_BACK`` dB above the strongest guess at them.
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
        word = "no leak detected" if self.status == "pass" else self.status
        images = "this 1 image" if self.n_images == 1 else f"these {self.n_images} images"
        search = f"{self.iterations} iterations" if self.iterations else "no search"
        about = f"about {images} alone, and no other client; {search}, {self.seconds:.1f} s"
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

    Without ``attacks`` those run that are cheap: of weights and gradients the closed form where the first layer is fully
    connected, else a search of at most ``FEW_IMAGES`` images; the labels; membership where ``held_out`` is handed in. Of
    other kinds the first look. Nothing stays on the disk unless ``out`` says so.

    Args:
        upload: what is about to be sent, as one upload of :func:`fedpriv.attack_uploads`.
        images: the client's images behind it, ``(n, c, h, w)`` in [0, 1], or a data set.
        labels: ``(n,)`` their classes.
        auxiliary: images that the upload was not computed from, for the baselines (default: those of ``held_out``).
        target: kind of upload (default: what the payload is; of :class:`Update` and :class:`Gradient` ``model``).
        extractor: network behind prototypes and representations.
        fail_on: what is judged, as of :func:`fedpriv.check`; an endpoint that was not measured is inconclusive.
        attacks: names of attacks.
        settings: see :class:`UploadSettings`: ``model``, ``batch``, ``held_out``, ``iterations`` (of each search, default
            ``ITERATIONS``) and the others.
    """
    begun = time.perf_counter()
    iterations = settings.get("iterations") or ITERATIONS
    refuse_small(settings, ("iterations",))
    if "redact" in settings:
        raise UserError("redact: a guard measures images that came back; drop it")
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
    whole: dict[str, Any] = {**settings, "attacks": texts("attacks", attacks)}
    if not whole["attacks"] and kind in NETWORKS:
        whole["attacks"] = _cheap(source)
    names = attack_names(kind, whole["attacks"]) if whole["attacks"] or kind not in NETWORKS else ()
    searched = any(ATTACKS.load(name).budget for name in names)
    whole |= {"iterations": iterations if searched else None}
    if len(own.labels.unique()) == source.n_classes:  # nothing to disclose
        wanted = tuple(endpoint for endpoint in wanted if endpoint != "label disclosure")
    folder, scratch = place(settings.get("out"))
    records, scores, notices = attack_source(source, whole, folder, pages=scratch is None) if names else ({}, {}, ())
    answers = page_answers({**records, **scores})
    came_back = 0
    for name in records:
        stored = load_attack(folder / name)
        assert stored.truths is not None
        gains = beyond_guesses(stored.reconstruction, stored.truths, stored.about.seed)
        came_back = max(came_back, int((gains >= CAME_BACK).sum()))
    del scratch
    judged = gate(answers, wanted).answers
    measured = {answer.endpoint for answer in judged}
    back = bool(came_back) and "reconstruction" in wanted
    above = f"{CAME_BACK:g} dB or more above any guess"
    reasons = [f"Reconstruction: leak: {came_back} of {len(own)} images came back, {above}."] if back else []
    # What a mean over images leaves open is settled by one that came back.
    kept = [one for one in judged if not (back and one.endpoint == "reconstruction" and one.verdict != "leak")]
    open_ = {answer.endpoint for answer in answers if answer.why in NOT_MEASURED} if answers else set(wanted)
    lost = [endpoint for endpoint in wanted if endpoint in open_ and endpoint not in measured]
    reasons += [sentence(one) for one in kept]
    reasons += [f"{one.capitalize()} was not measured: {ADVICE.get(one, 'pass attacks')}." for one in lost]
    leak = back or any(answer.verdict == "leak" for answer in judged)
    undecided = lost or (wanted and not judged) or any(answer.verdict == "inconclusive" for answer in judged)
    return GuardResult(
        status="leak" if leak else "inconclusive" if undecided else "pass",
        reasons=tuple(reasons),
        answers=judged,
        n_images=len(own),
        came_back=came_back,
        iterations=iterations if any(record.cost.iterations > 1 for record in records.values()) else 0,
        seconds=time.perf_counter() - begun,
        notices=tuple(notices),
    )


def _cheap(source: ExternalSource) -> tuple[str, ...]:
    """Return the attacks on trained weights that cost little: a closed form or a short search, labels, membership."""
    client, model = source.newest[0].client, source.model
    assert model is not None
    own = source.images[client]
    first = next((values.ndim for values in model.parameters() if values.ndim > 1), 0)
    names = ["linear-layer"] if first == 2 and not batch_norms(model) else []
    names = names or (["inverting-gradients"] if len(own) <= FEW_IMAGES else [])
    names += ["labels"] if 0 < len(own.labels.unique()) < source.n_classes else []
    held = source.held_out.get(client)
    if held is not None and bool((held.labels[:, None] == own.labels).any()):
        names.append("membership")
    fitting = attacks_for(source.kind)
    return tuple(name for name in names if name in fitting)
