"""The verb ``attack_uploads``: attack what the clients of another training loop would upload, and score it as runs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from torch import Tensor, nn

from fedpriv.experiment.federation_settings import refuse_small, refuse_unknown
from fedpriv.experiment.named_code import imports_what_is_named
from fedpriv.experiment.scratch import place
from fedpriv.experiment.verbs.result import AttackResult
from fedpriv.pipeline.plan import target_name
from fedpriv.pipeline.uploads import attack_source
from fedpriv.sources.door import read_uploads
from fedpriv.util import files
from fedpriv.util.config import texts
from fedpriv.util.parallel import Listener


class UploadSettings(TypedDict, total=False):
    """Keyword arguments beside uploads, extractor, images, labels and auxiliary images: more evidence, and circumstances.

    Attributes:
        model: architecture of uploaded weights or gradients, a ``torch.nn.Module`` from images ``(n, c, h, w)`` to logits
            ``(n, C)``. It is copied. The weights of a :class:`Gradient` are its weights.
        head: private head behind an extractor, a mapping or class outputs: a ``torch.nn.Linear``, one or one a client.
        batch: :class:`BatchFacts` of the local steps, one or one a client. Default of a gradient: one step on all images.
        broadcasts: payloads that clients answered, one message for all or one a client; of several rounds a list of these.
            Of weights a ``state_dict`` will do: uploads may then be ``state_dict``s too, as they are after local training.
        earlier_extractors: of several rounds, what ``extractor`` is of the last: a list with one entry for each round
            before.
        defense: what clients did to uploads before they left, for attackers who know it (they learn behind it): texts
            ``NAME[:KEY=VALUE,...]`` as of ``fedpriv train``. Uploads are handed in as they were sent.
        weights: ``(n,)`` each image's share in a mixture, one a client (default: by class, as the upload says).
        groups: label of the independent unit that each client belongs to (a person, a hospital), a list in the order of the
            clients or a mapping by client, where clients are not independent: intervals and their number of units then go
            by group.
        rounds_seen: rounds of uploads that attacks across rounds use, the last ones (default: all that are handed in).
        auxiliary_labels: ``(p,)`` classes of these images; without them floors know no classes, no image is identified among
            decoys, which have to be of its class, and without ``held_out`` membership inference has no non-members.
        held_out: each client's own images that it did not train on, with their classes: a pair (images ``(n, c, h, w)`` in
            [0, 1], labels ``(n,)``) for each client, a list or a mapping by client, of the classes that it trained on. They
            are the non-members of membership inference, without which it claims no leak.
        auxiliary_alike: True where one data set was divided and chance alone decided which images of a class a client holds
            and which are auxiliary images (default False): what attacks tell from decoys is then held against chance itself,
            which takes fewer images. Needs ``auxiliary_labels``. Not believed where a baseline finds more than chance.
        public: the attacker's own images ``(p, c, h, w)`` in [0, 1], where an attack learns from some.
        public_labels: ``(p,)`` their classes.
        n_classes: C (default: what uploads, model and labels say).
        knowledge: grants other than those that follow from what is handed in: a mapping, or texts ``GRANT=VALUE``.
        dataset: what records call the images (default ``own images``).
        method: what records call the training loop (default ``own uploads``).
        targets: how many targets at most (default 48).
        iterations: budget of every attack that has one, in its own unit.
        restarts: independent starts a target.
        attack_option: hyperparameters of every attack that has them, or of one under its name.
        chunk_rows: rows at a time; bounds memory, and moves results in the last digits at most.
        control: attack shuffled uploads too, where there are two clients at least (default True).
        device: ``auto`` (default), ``cpu``, ``cuda`` or ``cuda:N``.
        precision: of searches by Adam: ``float32`` (default), ``tf32`` or ``bfloat16``.
        compile: compile the networks of such searches first, which takes minutes; moves the last digits at most.
        seed: of targets, attacks, auxiliary images and scores (default 0).
        out: folder to make; None for a temporary result, which is gone with the returned object and has its grids and
            its page drawn when it is shown or saved.
        redact: ``blur`` or ``omit`` pictures of people in all that is stored and drawn (docs/redaction.md).
        force: replace ``out`` if it exists.
        share_group: let your group read the result; it is yours alone otherwise (docs/folders.md).
        listener: hears of the progress.
    """

    model: nn.Module
    head: Any
    batch: Any
    broadcasts: Any
    earlier_extractors: Any
    defense: Any
    weights: Any
    groups: Sequence[int | str] | Mapping[int, int | str]
    rounds_seen: int
    auxiliary_labels: Any
    held_out: Any
    auxiliary_alike: bool
    public: Tensor
    public_labels: Any
    n_classes: int
    knowledge: Mapping[str, Any] | Sequence[str]
    dataset: str
    method: str
    targets: int
    iterations: int | None
    restarts: int | None
    attack_option: Mapping[str, Any] | Sequence[str]
    chunk_rows: int | None
    control: bool
    device: str
    precision: str
    compile: bool
    seed: int
    out: str | Path | None
    redact: str | None
    force: bool
    share_group: bool
    listener: Listener


@imports_what_is_named
def attack_uploads(
    uploads: Any,
    *,
    target: str,
    images: Any,
    auxiliary: Tensor,
    labels: Any = None,
    extractor: Any = None,
    attacks: str | Sequence[str] = (),
    **settings: Unpack[UploadSettings],
) -> AttackResult:
    """Attack uploads that were made elsewhere; score what comes out beside baselines and shuffled uploads.

    Attacks see the uploads and what the threat model grants; images, labels and auxiliary images are for the scores alone,
    except that labels of a gradient's batch are granted unless ``knowledge={"labels": "inferred"}``.

    Args:
        uploads: one upload, a list with one a client, or a mapping from client numbers. An upload is a payload
            (``fedpriv.Prototypes``, ...), a tuple of payloads, a tensor or NumPy array where its kind is obvious,
            ``{class: vector}``, :class:`Update` or :class:`Gradient`. Of several rounds: a list with one list or mapping a
            round, the oldest first; the last round is attacked.
        target: kind of upload to attack: ``fedpriv list targets``.
        images: the private images behind each client's last upload, ``(n, c, h, w)`` floats in [0, 1], one tensor a client.
        auxiliary: ``(p, c, h, w)`` floats in [0, 1] that no upload was computed from: baselines are made of them.
        labels: ``(n,)`` class of each image, one a client; may be missing where uploads name it.
        extractor: a ``torch.nn.Module`` from images ``(n, c, h, w)`` in [0, 1] to representations ``(n, d)``, one or one a
            client. It is copied and used in evaluation mode. None where the attacker has none.
        attacks: names of attacks and inferences; none for all that fit and are granted.
        settings: see :class:`UploadSettings`.

    Raises:
        UserError: naming the argument, what was given and what would be right, before anything is attacked.
    """
    refuse_unknown(settings, UploadSettings.__optional_keys__)
    target, named = target_name(target), texts("attacks", attacks)
    refuse_small(settings, ("targets", "rounds_seen", "iterations", "restarts", "chunk_rows"))
    refuse_small(settings, ("n_classes",), 2)
    refuse_small(settings, ("seed",), 0)
    source = read_uploads(uploads, target, images, labels, extractor, auxiliary, settings)
    folder, scratch = place(settings.get("out"))
    lasting = scratch is None
    with files.sharing(settings.get("share_group", False)):
        records, scores, notices = attack_source(source, named, settings, folder, pages=lasting)
    return AttackResult(folder, records, scores, notices, None, scratch)
