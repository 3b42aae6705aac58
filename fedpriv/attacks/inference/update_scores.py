"""Membership scores and shares of classes from the change of weights between broadcast and upload.

**Span**, where a layer before the head is uploaded. A step changes weights W and bias b of z = W a + b by -lr sum_i d_i
(a_i, 1)^T, so the change M of (W, b), of m rows, has its rows in the span of the members' (a_i, 1), whatever the loss.
With errors of standard deviation e in M, the share of an input x = (a, 1) outside of that span is

    r(x) = s x^T (M^T M + s)^-1 x / ||x||^2,      s = e^2 (sqrt(m) + sqrt(d))^2,

and the score is -log r. (SPEAR, Dimitrov et al., NeurIPS 2024, inverts batches by this span; the score is ours.)

**Gradient** otherwise: the cosine between the update and the candidate's gradient at the broadcast weights (after Nasr et
al., S&P 2019). An extractor and an angle matrix take the client's private head.

**Shares of classes.** Training changes weights, in expectation, by a sum_k s_k g_k, with s the shares of classes and g_k
the mean gradient of own images of class k at the broadcast weights, the uploaded ones, and half-way: least squares under
s >= 0, rounds averaged by the explained part. (Numbers of labels: Geng et al., arXiv 2110.09074, 2021; any part of a
model is ours.) Without images, by biases: a class's bias rises where the client has more of it than the model expects
(Wainakh et al., 2022).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, replace_all_batch_norm_modules_, vmap
from torch.nn.functional import cross_entropy

from fedpriv.algebra.low_rank import leading
from fedpriv.algebra.matrices import dense, diagonal_blocks
from fedpriv.attacks.gradients.update import HEAD, Tangent, Update, Weights, last_layer, private_head, read_update
from fedpriv.attacks.inference.base import InferenceProblem
from fedpriv.attacks.inputs.targets import represent, upload_holds
from fedpriv.attacks.observation import Knowledge, Observation
from fedpriv.uploads.kinds import EXTRACTORS, HEADS, LAYERS, MAPPINGS, NETWORKS, TRAINED
from fedpriv.uploads.payloads import AngleMatrix, Classifier, find_payload, get_payload
from fedpriv.util.errors import UserError, shown

BATCH, _GRADIENT_VALUES = 256, 2**24  # images in a pass, and values of candidates' gradients at a time
LEAST = 1e-10  # share of an input outside of the row space below which all are alike
_ROUNDING = 2.0**-24  # the largest standard deviation of rounding to single precision, over the size of the value
_STEADY, _TINY = 1e-14, 1e-12  # least s over the trace of M M^T; least length that is divided by
WAY = (0.0, 0.5, 1.0)  # places between the broadcast and the uploaded weights that gradients are averaged over
LEAST_SHARE = 1e-6  # of a class, and least weight of a round
MOST_VALUES = 2**25  # of all classes' gradients that are compared: 256 MiB
_SQUARE, _EIGENVALUE = 1e-30, 1e-12  # least length that is divided by; least eigenvalue, to the largest


@dataclass(frozen=True)
class Layer:
    """The change of a fully connected layer by training, that of a bias as its last column."""

    change: Tensor  # (m, d)
    error: float  # standard deviation of the error of an entry
    inputs: Callable[[], Tensor]  # of candidates (n, d), one for the bias


def hidden_layer(model: nn.Module, update: Update, images: Tensor) -> Layer | None:
    """Return the first uploaded fully connected layer before the head that takes one vector an image; None where none does.

    Of a matrix of which only leading singular triples arrived, U^T (W - W') is known exactly, and of the rest too little.
    """
    layers = [str(name) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    head = next((name for name in layers if f"{name}.".startswith(HEAD)), layers[-1] if layers else "")

    def given(name: str, some: Tensor) -> list[Tensor]:
        seen: list[Tensor] = []
        hook = model.get_submodule(name).register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))
        try:
            with torch.no_grad():
                functional_call(model, update.before, (some,))
        finally:
            hook.remove()
        return seen

    sent = (name for name in layers if name != head and f"{name}.weight" in update.before)
    name = next((name for name in sent if [rows.dim() for rows in given(name, images[:1])] == [2]), None)
    if name is None:
        return None
    weight, bias = f"{name}.weight", f"{name}.bias"
    truncated = update.project.left.get(weight) if isinstance(update.project, Tangent) else None
    biased = bias in update.before and truncated is None
    change = (update.before[weight] - update.after[weight]).double()
    if truncated is not None:
        change = leading(update.after[weight], truncated.shape[-1])[0].double().mT @ change
    elif biased:
        change = torch.cat([change, (update.before[bias] - update.after[bias]).double()[:, None]], 1)

    def inputs() -> Tensor:
        rows = torch.cat([row for some in images.split(BATCH) for row in given(name, some)]).double()
        return torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if biased else rows

    return Layer(change, _ROUNDING * float(update.before[weight].double().square().mean().sqrt()), inputs)


def outside(change: Tensor, error: float, inputs: Tensor) -> Tensor:
    """Return the share ``(n,)`` of inputs ``(n, d)`` outside of the row space of a change ``(m, d)``, in [0, 1]."""
    m, d = change.shape
    whole = inputs.square().sum(1)
    length = whole.clamp_min(torch.finfo(inputs.dtype).tiny)
    total = float(change.square().sum())
    if total == 0:
        return torch.ones_like(length)
    allowed = max(error**2 * (m**0.5 + d**0.5) ** 2, _STEADY * total)
    parts, gram = (inputs @ change.T, change @ change.T) if m <= d else (inputs, change.T @ change)
    factor = torch.linalg.cholesky(gram + allowed * torch.eye(len(gram)).to(gram))
    inner = (parts * torch.cholesky_solve(parts.T, factor).T).sum(1)
    outer = ((length - inner if m <= d else allowed * inner) / length).clamp(0, 1)
    return torch.where(whole > 0, outer, 1.0)  # an input of zeros says nothing of anybody


@dataclass(frozen=True)
class Training:
    """A client's training from broadcast to uploaded weights, as a loss of candidates."""

    before: Weights
    after: Weights
    inputs: Tensor  # candidates (n, ...) as the weights take them: images, or representations
    logits: Callable[[Weights, Tensor], Tensor]  # (weights, some inputs (b, ...)) -> (b, C)
    project: Callable[[Mapping[str, Tensor]], Weights] | None = None  # to the comparable part; None for everything
    complete: bool = False  # whether the weights are the whole model
    layer: Layer | None = None  # fully connected, before a head; None where none is uploaded

    def losses(self, weights: Weights, labels: Tensor) -> Tensor:
        """Return the loss of each candidate ``(n,)``, float64."""
        with torch.no_grad():
            outputs = torch.cat([self.logits(weights, some) for some in self.inputs.split(BATCH)]).double()
        return cross_entropy(outputs, labels, reduction="none")

    def comparable(self, changes: Mapping[str, Tensor]) -> list[Tensor]:
        """Return the comparable part of changes of the weights, stacked along a first axis: ``(n, p)`` a parameter."""
        kept = changes if self.project is None else self.project(changes)
        return [kept[name].flatten(1) for name in self.before]


def alignments(trainings: Sequence[Training], labels: Tensor) -> Tensor:
    """Return the cosine between each candidate's gradient and the updates of trainings that start alike ``(k, n)``."""
    first = trainings[0]

    def loss(weights: Weights, values: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(first.logits(weights, values[None]), label[None])

    updates = []
    for each in trainings:
        parts = each.comparable({name: (value - each.after[name])[None] for name, value in each.before.items()})
        length = torch.stack([part.double().square().sum() for part in parts]).sum().sqrt().clamp_min(_TINY)
        updates.append([(part.double() / length).to(part.dtype) for part in parts])
    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    size = max(1, min(BATCH, _GRADIENT_VALUES // sum(part.shape[1] for part in updates[0])))
    results = []
    for some, current in zip(first.inputs.split(size), labels.split(size), strict=True):
        stack = gradients(first.before, some, current)
        pairs = zip(trainings, updates, strict=True)
        results.append(torch.stack([_cosines(update, each.comparable(stack)) for each, update in pairs]))
    return torch.cat(results, 1)


def _cosines(update: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return the cosines ``(n,)``, float64, of an update of length one ``(1, p)`` and gradients ``(n, p)`` a parameter."""
    pairs = zip(update, gradients, strict=True)
    inner = torch.stack([(gradient @ part[0]).double() for part, gradient in pairs]).sum(0)
    squares = torch.stack([torch.linalg.vecdot(gradient, gradient).double() for gradient in gradients]).sum(0)
    return inner / squares.sqrt().clamp_min(_TINY)


def update_signals(seen: Sequence[Observation], images: Tensor, labels: Tensor, knowledge: Knowledge) -> Tensor:
    """Return the signal of k uploads for each candidate image ``(n, c, h, w)`` of class ``(n,)``: ``(k, n)`` float64."""
    trainings = [training_of(items, items.client, images, knowledge) for items in seen]
    layers = [training.layer for training in trainings if training.layer is not None]
    if len(layers) == len(trainings):
        shares = [outside(layer.change, layer.error, layer.inputs()) for layer in layers]
        return torch.stack([-share.clamp_min(LEAST).log().cpu() for share in shares])
    start = trainings[0].before  # whole models that start alike share the candidates' gradients
    alike = all(torch.equal(value, each.before[name]) for each in trainings for name, value in start.items())
    groups = [trainings] if alike and trainings[0].complete else [[item] for item in trainings]
    return torch.cat([alignments(group, labels.to(group[0].inputs.device)).double().cpu() for group in groups])


def training_of(seen: Observation, client: int, images: Tensor, knowledge: Knowledge) -> Training:
    """Return a client's training as a loss of images ``(n, c, h, w)``."""
    for kind in (Classifier, AngleMatrix):
        if find_payload(seen.upload, kind) is not None and find_payload(seen.broadcast, kind) is None:
            raise UserError(f"broadcast of round {seen.round}: holds no {kind.kind} to compare the upload with")
    if find_payload(seen.upload, Classifier) is not None:
        features = represent(knowledge, client, images).double()
        before, after = (
            {name: get_payload(message, Classifier).state[name].double().cpu() for name in ("weight", "bias")}
            for message in (seen.broadcast, seen.upload)
        )
        return Training(before, after, features, lambda state, rows: rows @ state["weight"].T + state["bias"])
    if find_payload(seen.upload, AngleMatrix) is not None:
        return _of_angle_matrix(seen, represent(knowledge, client, images).double(), granted_head(client, knowledge))
    return _of_model(seen, client, images, knowledge)


def granted_head(client: int, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Return the weight and bias of a client's head, where granted."""
    if client not in knowledge.heads:
        granted = f"pass knowledge={shown({'extractor': 'white_box'})}"
        raise UserError(f"no head of client {client} was handed over; {granted}")
    return knowledge.heads[client]


def _of_angle_matrix(seen: Observation, features: Tensor, head: tuple[Tensor, Tensor]) -> Training:
    whole = dense(get_payload(seen.broadcast, AngleMatrix).blocks.cpu()).double()
    after = get_payload(seen.upload, AngleMatrix).blocks.cpu().double()
    before = diagonal_blocks(whole, len(after))
    beside = whole - dense(before)  # what is not uploaded is unknown, not zero: the client had it from the broadcast
    weight, bias = (value.double().cpu() for value in head)

    def logits(state: Weights, rows: Tensor) -> Tensor:
        in_blocks = rows.unflatten(1, before.shape[:2])
        turned = torch.einsum("nmi,mij->nmj", in_blocks, state["blocks"]).flatten(1)
        return (rows + turned + rows @ beside) @ weight.T + bias

    return Training({"blocks": before}, {"blocks": after}, features, logits)


def _of_model(seen: Observation, client: int, images: Tensor, knowledge: Knowledge) -> Training:
    if knowledge.model is None:
        raise UserError(f"{upload_holds(seen)}; membership from training needs one of {', '.join(TRAINED)}")
    # Batch norms take batch statistics: running ones are not uploaded.
    model = copy.deepcopy(knowledge.model).to(images.device).eval()
    replace_all_batch_norm_modules_(model)
    update = read_update(seen, model, images.device)
    rest: Weights = {}
    if not update.whole:
        rest = private_head(granted_head(client, knowledge), update.before)
        model.load_state_dict(rest, strict=False)

    def logits(weights: Weights, some: Tensor) -> Tensor:
        values: Tensor = functional_call(model, weights | rest, (some,))
        return values

    layer = hidden_layer(model, update, images)
    return Training(update.before, update.after, images, logits, update.project, complete=not rest, layer=layer)


# ---------------------------------------------------------------- shares of classes


def head_bias_delta(problem: InferenceProblem) -> dict[int, Tensor]:
    """Return by how much each class's bias rose ``(C,)``, float64, in units of the mean size, averaged over rounds."""
    deltas = {}
    for client in problem.uploads:
        changes = (bias_change(seen, knowledge) for seen, knowledge in problem.uploads_of(client))
        each = [change for change in changes if change is not None]
        scaled = [change / change.abs().mean().clamp_min(_SQUARE) for change in each]
        deltas[client] = torch.stack(scaled).mean(0)
    return deltas


def bias_change(seen: Observation, knowledge: Knowledge) -> Tensor | None:
    """Return the change of the head's biases, or where it has none the sums of its rows', float64; None without a head."""
    head, after = find_payload(seen.broadcast, Classifier), find_payload(seen.upload, Classifier)
    if head is not None and after is not None:
        change: Weights = {name: after.state[name] - head.state[name] for name in ("weight", "bias")}
    elif knowledge.model is not None and NETWORKS.first(seen.upload) is not None and NETWORKS.first(seen.broadcast):
        update = read_update(seen, knowledge.model, torch.device("cpu"))
        change = {name: update.after[name] - value for name, value in update.before.items()}
    else:
        return None
    try:
        weight, bias = last_layer(change, knowledge.n_classes)
    except UserError:
        return None
    rose = (weight.sum(1) if bias is None else bias).double().cpu()
    return rose if bool(rose.isfinite().all()) else torch.zeros_like(rose)


def has_gradients(seen: Observation, knowledge: Knowledge) -> bool:
    """True if the attacker can compute gradients of images through an upload."""
    sent = TRAINED.first(seen.upload)
    if sent is None or (NETWORKS if sent.kind in NETWORKS else LAYERS).first(seen.broadcast) is None:
        return False
    if sent.kind in NETWORKS:
        return knowledge.model is not None and (sent.kind not in EXTRACTORS or seen.client in knowledge.heads)
    there = seen.client in knowledge.extractors
    return there and (sent.kind in HEADS or (sent.kind in MAPPINGS and seen.client in knowledge.heads))


def shares_by_gradients(problem: InferenceProblem) -> dict[int, Tensor]:
    """Return the shares of classes ``(C,)`` in each client's images, float64, over all rounds."""
    results = {}
    for client in problem.uploads:
        fits = []
        for item, knowledge in problem.uploads_of(client):
            images, labels = knowledge.public_images, knowledge.public_labels
            if images is not None and labels is not None and has_gradients(item, knowledge):
                training = training_of(item, client, images, knowledge)
                fits.append(shares_of(training, labels.to(training.inputs.device), knowledge.n_classes))
        weights = torch.tensor([explained for _, explained in fits], dtype=torch.float64).clamp_min(LEAST_SHARE)
        mean = (torch.stack([shares for shares, _ in fits]) * weights[:, None]).sum(0) / weights.sum()
        results[client] = (mean + LEAST_SHARE) / (mean + LEAST_SHARE).sum()
        if problem.progress is not None:
            problem.progress(len(results), len(problem.uploads))
    return results


def shares_of(training: Training, labels: Tensor, n_classes: int) -> tuple[Tensor, float]:
    """Return the shares of classes ``(C,)`` that explain one training best, float64 on the CPU, and the explained part.

    That is of the change's square, in [0, 1]; shares are even where it is 0. Inputs are own images of ``labels`` ``(m,)``.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]  # takes a quarter of a second to import

    names = _names_compared(training, n_classes)
    change = _flat(training, {name: training.before[name] - training.after[name] for name in names})
    gradients = class_gradients(training, labels, n_classes, names)
    columns = torch.stack([_flat(training, gradient) for gradient in gradients], 1)
    lengths, whole = columns.norm(dim=0).clamp_min(_SQUARE), float(change.square().sum())
    columns /= lengths
    gram, inner = (columns.T @ columns).cpu(), (columns.T @ change).cpu()
    even = torch.full((n_classes,), 1 / n_classes, dtype=torch.float64)
    if not whole or not bool(gram.isfinite().all() and inner.isfinite().all()):
        return even, 0.0
    # Non-negative least squares by the normal equations of columns of length one, or zero.
    values, vectors = torch.linalg.eigh(gram)
    roots = values.clamp_min(_EIGENVALUE * float(values[-1])).sqrt()
    least = torch.from_numpy(nnls((roots[:, None] * vectors.T).numpy(), ((vectors.T @ inner) / roots).numpy())[0])
    rest = float((change - columns @ least.to(columns)).square().sum())
    # Rounding would fill a column of zeros.
    shares = torch.where(lengths.cpu() > _SQUARE, least / lengths.cpu(), 0.0)
    return (shares / shares.sum(), max(0.0, 1 - rest / whole)) if float(shares.sum()) else (even, 0.0)


def class_gradients(training: Training, labels: Tensor, n_classes: int, names: Sequence[str]) -> list[Weights]:
    """Return the mean gradient of each class, by name, along the way of the weights; zero without images."""
    numbers = torch.bincount(labels, minlength=n_classes)
    results = [{name: torch.zeros_like(training.before[name]) for name in names} for _ in range(n_classes)]
    passes = -(-len(labels) // BATCH)
    for position in WAY:
        weights = {name: torch.lerp(value, training.after[name], position) for name, value in training.before.items()}
        requested = {name: weights[name].detach().requires_grad_() for name in names}
        for first in range(passes):
            part = torch.arange(first, len(labels), passes, device=labels.device)
            rows = part if len(part) > 1 else part.repeat(2)  # a batch norm needs two images
            with torch.enable_grad():
                logits = training.logits(weights | requested, training.inputs[rows])
                losses = cross_entropy(logits, labels[rows], reduction="none")
            there = labels[part].unique().tolist()
            for label in there:
                share = int((labels[part] == label).sum()) / (int(numbers[label]) * len(WAY))
                mean = losses[labels[rows] == label].mean() * share
                slopes = torch.autograd.grad(mean, list(requested.values()), retain_graph=label != there[-1])
                for name, slope in zip(names, slopes, strict=True):
                    results[label][name] += slope
    return results


def _names_compared(training: Training, n_classes: int) -> list[str]:
    """Return the names of the head's parameters, or else the last up to :data:`MOST_VALUES`."""
    try:
        weight, bias = last_layer(training.before, n_classes)
    except UserError:
        names, values = list(training.before), 0
        for kept, name in enumerate(reversed(names), start=1):
            values += n_classes * training.before[name].numel()
            if values > MOST_VALUES:
                return names[-max(1, kept - 1) :]
        return names
    return [name for name, value in training.before.items() if value is weight or value is bias]


def _flat(training: Training, changes: Mapping[str, Tensor]) -> Tensor:
    """Return the comparable part of changes as one vector, float64."""
    kept = changes if training.project is None else training.project(changes)
    return torch.cat([value.flatten() for value in kept.values()]).double()
