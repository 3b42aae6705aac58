"""Everything that crosses the wire: one frozen dataclass per kind of payload, with named and shaped tensors.

The fields of a payload are the threat surface, so each says its shape, what of the data it was computed from, and whether
it is private or metadata. Kinds of other packages are declared as these are: see :mod:`fedpriv.uploads.payload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from fedpriv.uploads.payload import Message as Message
from fedpriv.uploads.payload import Payload as Payload
from fedpriv.uploads.payload import find_payload as find_payload
from fedpriv.uploads.payload import get_payload as get_payload
from fedpriv.uploads.payload import state, tensor

if TYPE_CHECKING:
    from torch import Tensor

Through = Literal["cross_entropy", "logits", "representation"]
"""Where the derivative of the loss comes from, seen from the uploaded network:

``cross_entropy``: its own logits and the labels say it. ``logits``: it is that of some function of its logits, for example
of a private model's answers too. ``representation``: private parts send derivatives to its representations as well.
"""

_WEIGHTS: dict[str, Any] = {"computed_from": "training", "space": "weights", "aggregation": "mean", "once": False}
_VECTORS: dict[str, Any] = {"space": "representation", "aggregation": "none", "once": False}
_SERVER: dict[str, Any] = {"computed_from": "server", "aggregation": "none", "once": False}


@dataclass(frozen=True)
class Representations(Payload, kind="representation", computed_from="image", **_VECTORS):
    """Raw representations of training images, one row an image (FedAllRep)."""

    features: Tensor = tensor("n d", private=True)  # g(x) of each image
    labels: Tensor = tensor("n", private=True, integer=True, says="classes")


@dataclass(frozen=True)
class Prototypes(Payload, kind="prototype", computed_from="class", **_VECTORS):
    """Mean representation of each class that the client holds (FedProto, FedGH, FedTGP, FPL)."""

    features: Tensor = tensor("c d", private=True)  # mean of g(x) over the class's training images
    classes: Tensor = tensor("c", private=True, integer=True, says="classes")  # which classes these are
    counts: Tensor | None = tensor("c", private=True, integer=True, optional=True, says="counts")  # images averaged


@dataclass(frozen=True)
class Entangled(Payload, kind="entangled", computed_from="mixture", **_VECTORS):
    """One weighted sum of all of a client's representations, and of its labels with the same weights (FedRE)."""

    feature: Tensor = tensor("d", private=True)  # sum_i w_i g(x_i)
    label_encoding: Tensor = tensor("C", private=True, says="weights")  # sum_i w_i onehot(y_i): the weights, by class


@dataclass(frozen=True)
class AngleMatrix(Payload, kind="angle-matrix", network="mapping", **_WEIGHTS):
    """The m diagonal blocks of a d x d matrix trained with the local model (FedRAL). m = 1 is the dense matrix."""

    blocks: Tensor = tensor("m b b", private=True)  # b = d / m

    def before(self, sent: AngleMatrix) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the broadcast matrix on the blocks that are uploaded."""
        from fedpriv.algebra.matrices import dense, diagonal_blocks

        return {"blocks": diagonal_blocks(dense(sent.blocks), len(self.blocks))}

    def addable(self) -> AngleMatrix:
        """Return the dense matrix: clients may send different blocks."""
        from fedpriv.algebra.matrices import dense

        return AngleMatrix(dense(self.blocks)[None])


@dataclass(frozen=True)
class ClassLogits(Payload, kind="logits", computed_from="class", space="outputs", aggregation="none", once=False):
    """Mean output of each class that the client holds (FD)."""

    values: Tensor = tensor("c C", private=True)
    classes: Tensor = tensor("c", private=True, integer=True, says="classes")


@dataclass(frozen=True)
class Kernel(Payload, kind="kernel", computed_from="public", space="kernel", aggregation="mean", once=False):
    """Similarities of L public inputs under the client's extractor (FedHeNN)."""

    matrix: Tensor = tensor("L L", private=True)


@dataclass(frozen=True)
class PublicLogits(
    Payload, kind="public-logits", computed_from="public", space="outputs", aggregation="mean", once=False
):
    """Outputs on public samples, logits or softmax vectors (FedMD, DS-FL; broadcast as the consensus)."""

    values: Tensor = tensor("n C", private=True)
    samples: Tensor = tensor("n", private=False, integer=True, paper=False)  # their places in the public set


@dataclass(frozen=True)
class LabelCounts(Payload, kind="label-counts", computed_from="client", space="counts", aggregation="sum", once=True):
    """Number of training images of each class that the client holds (FedGen, once)."""

    counts: Tensor = tensor("C", private=True, integer=True, says="histogram")


@dataclass(frozen=True)
class SampleCount(Payload, kind="sample-count", computed_from="client", space="counts", aggregation="sum", once=False):
    """Number of training images that the client holds: the weight of its upload in an average."""

    count: Tensor = tensor("1", private=True, integer=True, says="size")


@dataclass(frozen=True)
class Model(Payload, kind="model", network="whole", **_WEIGHTS):
    """A whole model (FedAvg and relatives)."""

    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class SmallModel(Payload, kind="small-model", network="small", **_WEIGHTS):
    """The homogeneous model that is shared beside the private one (FedMRL, FML, FedAPEN)."""

    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class Classifier(Payload, kind="classifier", network="head", **_WEIGHTS):
    """The head, one linear layer d -> C (LG-FedAvg, FedGen; broadcast by FedGH, FedRE)."""

    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class Extractor(Payload, kind="extractor", network="extractor", **_WEIGHTS):
    """The extractor without the head (FedRep)."""

    state: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class LowRankModel(
    Payload, kind="low-rank-model", network="small", **(_WEIGHTS | {"space": "factors", "aggregation": "none"})
):
    """A model whose matrices are sent as truncated singular value decompositions (FedKD)."""

    factors: Mapping[str, Tensor] = state()


@dataclass(frozen=True)
class PublicLoss:
    """The loss of one round's local steps, as the protocol tells it to an outsider: public, so attackers know it too."""

    through: Through = "cross_entropy"
    head_apart: bool = False  # the head's update is no gradient of it: begun elsewhere, or of a loss of its own
    proximal: float = 0.0  # weight mu of mu / 2 |w - w_broadcast|^2 in the loss
    disturbed: bool = False  # something that attacks do not compute moves the weights, too, from the first step on
    disturbed_later: bool = False  # likewise from the second step of a round on


@dataclass(frozen=True)
class Generator(Payload, kind="generator", space="weights", network="generator", **_SERVER):
    """A network from noise and label to a representation (FedGen's broadcast)."""

    state: Mapping[str, Tensor] = state(private=False)


@dataclass(frozen=True)
class Energy(Payload, kind="energy", space="number", **_SERVER):
    """Share of the squared singular values that uploads should keep (FedKD's broadcast)."""

    share: Tensor = tensor("1", private=False, paper=False)  # in (0, 1]


@dataclass(frozen=True)
class PublicImages(Payload, kind="public-images", space="pixels", **_SERVER):
    """Unlabelled public images that every client represents (FedHeNN's broadcast)."""

    images: Tensor = tensor("L c h w", private=False)


@dataclass(frozen=True)
class PublicSamples(Payload, kind="public-samples", space="number", **_SERVER):
    """Places in the public set, which everybody holds: the samples whose outputs are asked for (FedMD, DS-FL)."""

    samples: Tensor = tensor("n", private=False, integer=True, paper=False)


@dataclass(frozen=True)
class Coefficient(Payload, kind="coefficient", space="number", **_SERVER):
    """A hyperparameter that the server schedules (FedHeNN's weight of the alignment term)."""

    value: Tensor = tensor("1", private=False, paper=False)


@dataclass(frozen=True)
class FeatureMean(
    Payload, kind="feature-mean", computed_from="client", space="representation", aggregation="mean", once=True
):
    """Mean representation (FedAvgDBE, once)."""

    mean: Tensor = tensor("d", private=True)
