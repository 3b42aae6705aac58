"""Networks from elsewhere: what an attack gives on them, and what is refused in one line that can be followed."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import fedpriv
from fedpriv.sources.networks import copied

CPU = torch.device("cpu")
IMAGES = [torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed)) for seed in range(2)]
LABELS = [torch.tensor([0]), torch.tensor([1])]


class Network(nn.Module):
    """Two layers; ``between`` stands between them, ``shown`` makes the output."""

    def __init__(self, between=torch.tanh, shown=lambda logits: logits):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.extra = nn.Linear(16, 12), nn.Linear(12, 3), nn.Linear(2, 2)
        self.between, self.shown = between, shown

    def forward(self, images):
        return self.shown(self.head(self.between(self.first(images.flatten(1)))))


def by_segments(values):
    """The same values, by an operation of which torch has no second derivative."""
    return torch.segment_reduce(values.flatten(), "sum", lengths=torch.ones(values.numel(), dtype=int)).view_as(values)


def gradients(network, *, names=None, missing=()):
    """One gradient a client, of the parameters named (default: all), None for unused ones, without ``missing``."""
    own = {name: value for name, value in network.named_parameters() if names is None or name in names}
    made = []
    for images, labels in zip(IMAGES, LABELS, strict=True):
        loss = functional.cross_entropy(network(images), labels)
        values = torch.autograd.grad(loss, own.values(), allow_unused=True)
        made.append({name: value for name, value in zip(own, values, strict=True) if name not in missing})
    return made


def attacked(uploads, network, **more):
    """The result of an attack on uploads of a model, few iterations long."""
    known = {"images": IMAGES, "labels": LABELS, "auxiliary": torch.rand(8, 1, 4, 4), "attacks": ["linear-layer"]}
    given = [fedpriv.Gradient(values) if isinstance(values, dict) else values for values in uploads]
    settings = {"target": "model", "model": network, "iterations": 3, "control": False} | known | more
    return fedpriv.attack_uploads(given, **{name: value for name, value in settings.items() if value is not None})


def error(result, name="linear-layer"):
    """Largest difference of the reconstructions from the images."""
    return float((result.images(name).flatten(0, 1) - torch.cat(IMAGES)).abs().max())


@pytest.mark.parametrize("layer", [nn.Hardswish(), nn.Hardsigmoid()])
def test_hard_activations_are_the_same_function_with_second_derivatives(layer):
    """Values and first derivatives are torch's; the second derivative is that of the formula."""
    values = torch.linspace(-4, 4, 33).requires_grad_()
    network = copied("model", nn.Sequential(layer), CPU, [])
    torch.testing.assert_close(network(values), layer(values))
    (slopes,) = torch.autograd.grad(network(values).sum(), values, create_graph=True)
    torch.testing.assert_close(slopes, torch.autograd.grad(layer(values).sum(), values)[0])
    if isinstance(layer, nn.Hardswish):  # x (x + 3) / 6 within
        assert float(torch.autograd.grad(slopes[16], values)[0][16]) == pytest.approx(1 / 3)


def test_layers_that_drop_by_themselves_drop_nothing():
    """A transformer's layer in training mode gives what it gives in evaluation."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    network, tokens = copied("model", layer, CPU, []), torch.rand(2, 3, 8)
    torch.testing.assert_close(network.train()(tokens), network.eval()(tokens))


def test_gradients_of_the_trainable_parameters_alone_lead_to_the_image():
    """The others are known and fixed: an image is read off the layer that is trained, and a search begins."""
    network = Network()
    for value in (*network.head.parameters(), *network.extra.parameters()):
        value.requires_grad_(False)
    trained = gradients(network, names={"first.weight", "first.bias"})
    result = attacked(trained, network, attacks=["linear-layer", "inverting-gradients"])
    assert error(result) < 1e-3
    assert result.records["inverting-gradients"].premise.status == "agrees"
    listed = [fedpriv.Gradient([*values.values()]) for values in trained]
    assert error(attacked(listed, network)) < 1e-3


def test_updates_whose_fixed_parameters_are_not_the_models():
    """What nobody trains is taken from the weights before, where the model has others."""
    network = Network()
    for value in network.head.parameters():
        value.requires_grad_(False)
    before, updates = network.state_dict(), []
    for gradient in gradients(network, names={"first.weight", "first.bias"}):
        after = {name: value - 0.1 * gradient.get(name, 0.0) for name, value in before.items()}
        updates.append(fedpriv.Update(before, after))
    other = copy.deepcopy(network)
    nn.init.normal_(other.head.weight)
    result = attacked(updates, other, batch=fedpriv.BatchFacts(1, 0.1, 1))
    assert error(result) < 1e-2
    assert result.records["linear-layer"].premise.status == "agrees"


def test_unused_parameters_and_prefixes():
    """None is zeros, ``module.`` is no part of a name; what is missing is refused, and following the line works."""
    network = Network()
    whole = gradients(network)
    assert whole[0]["extra.weight"] is None
    prefixed = [{f"module.{name}": value for name, value in values.items()} for values in whole]
    assert error(attacked(prefixed, network)) < 1e-3
    assert error(attacked(prefixed, nn.DataParallel(network))) < 1e-3
    partial = gradients(network, missing={"extra.weight", "extra.bias"})
    with pytest.raises(fedpriv.UserError, match=r"'extra.weight'\].*got nothing; .*requires_grad_\(False\)"):
        attacked(partial, network)
    network.extra.requires_grad_(False)
    assert error(attacked(partial, network)) < 1e-3


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_attacked_as_float32(kind):
    """The copy is converted, and a line says so."""
    network = Network()
    values = gradients(network)
    result = attacked(values, copy.deepcopy(network).to(kind))
    assert error(result) < 1e-2
    assert f"model: weights of {kind}; a float32 copy is attacked" in result.notices


def test_outputs_of_several_tensors():
    """One table, a key ``logits``, or a first element is taken; else the line says what to wrap."""
    values = gradients(Network())
    for shown in (
        lambda z: {"logits": z, "hidden": z[:, :2]},
        lambda z: {"only": z, "loss": z.mean()},
        lambda z: (z, z.mean()),
    ):
        assert error(attacked(values, Network(shown=shown))) < 1e-3
    with pytest.raises(fedpriv.UserError, match=r"expected logits \(n, C\).*got dict; wrap it in a torch.nn.Module"):
        attacked(values, Network(shown=lambda z: {"a": z, "b": z}))
    traced = torch.jit.trace(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), IMAGES[0])
    with pytest.raises(fedpriv.UserError, match=r"torch.jit module.*pass the original torch.nn.Module"):
        attacked(values, traced)


def test_an_operation_without_second_derivative_is_named_before_any_search():
    """Attacks that need it are left out, others go on; asked for by name they are refused in one line."""
    network = Network(between=by_segments)
    result = attacked(gradients(network), network, attacks=None, full=True)
    assert error(result) < 1e-3
    assert sum("segment_reduce has no second derivative" in line for line in result.notices) == 2
    with pytest.raises(fedpriv.UserError, match=r"'dlg' differentiates gradients again: segment_reduce has no"):
        attacked(gradients(network), network, attacks=["dlg"])


def test_an_error_in_a_users_network_takes_no_other_attacks_result(tmp_path):
    """It is one line; without any result no folder is left, and the same call works once the network does."""
    calls = []

    def fails(values):
        calls.append(1)
        if len(calls) > 8 and torch.is_grad_enabled() and values.requires_grad:
            raise ValueError("of my own\nand a second line")
        return torch.tanh(values)

    values = gradients(Network())
    result = attacked(values, Network(fails), attacks=["linear-layer", "dlg"])
    assert list(result.records) == ["linear-layer"]
    assert "left out: attack 'dlg': ValueError: of my own" in result.notices
    calls.clear()
    with pytest.raises(fedpriv.UserError, match=r"^attack 'dlg': ValueError: of my own$"):
        attacked(values, Network(fails), attacks=["dlg"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    attacked(values, Network(), attacks=["dlg"], out=tmp_path / "out")
    assert (tmp_path / "out" / "dlg").is_dir()
