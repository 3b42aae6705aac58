"""Operations of the inner loops of gradient matching, counted: few kernels, and nothing that a GPU would have to wait for.

The limits are half of what the loops took when an evaluation was a graph of a graph and rows were told apart by branches,
counted in the same way: 278 kernels an iteration of inverting gradients, 1,376 an evaluation of DLG with 61 and more looks
at single numbers.
"""

from gradient_cases import attack, images_and_labels
from torch.utils._python_dispatch import TorchDispatchMode

from fedpriv.attacks.gradients import search
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.inverting_gradients import InvertingGradients
from fedpriv.attacks.search.lbfgs import _LOOK_EVERY, _Descent
from fedpriv.models.build import build_model
from fedpriv.models.split import Blueprint

NO_KERNEL = ("empty", "_unsafe_view", "detach", "profiler")
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal.default")


class Counted(TorchDispatchMode):
    """Counts kernels, and what makes the program wait for numbers."""

    def __init__(self):
        super().__init__()
        self.kernels = 0
        self.waits = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        self.kernels += not function.is_view and not any(part in name for part in NO_KERNEL)
        self.waits += [name] if any(part in name for part in WAITS) else []
        return function(*args, **(kwargs or {}))


def lenet():
    return build_model(Blueprint("lenet-sigmoid", (1, 8, 8), 10, 48), 0)


def counts(monkeypatch, owner, name, run):
    """Return the kernels and waits of every call of a method, but for the first, which prepares."""
    found = []
    method = getattr(owner, name)

    def counted(*given):
        with Counted() as count:
            result = method(*given)
        found.append(count)
        return result

    monkeypatch.setattr(owner, name, counted)
    run()
    assert len(found) > 10
    return found[1:]


def test_an_iteration_of_inverting_gradients(monkeypatch):
    images, labels = images_and_labels(3)

    def run():
        attack(InvertingGradients(iterations=20, total_variation=0.1, signed=False), lenet(), images, labels)

    found = counts(monkeypatch, search.PixelSearch, "step", run)
    assert max(one.kernels for one in found) <= 139 + 4  # objectives under another weight begin anew
    assert sorted(one.kernels for one in found)[len(found) // 2] <= 139
    assert not any(one.waits for one in found)


def expect_few(ticks):
    """Rows may have been dropped at a look; what the others are compared with is then gathered in the tick after it."""
    assert max(one.kernels for one in ticks) <= 688
    assert _LOOK_EVERY >= 5
    assert [place for place, one in enumerate(ticks) if one.waits and place % _LOOK_EVERY != _LOOK_EVERY - 1] == []


def test_an_evaluation_of_deep_leakage(monkeypatch):
    images, labels = images_and_labels(3)

    def run():
        attack(DeepLeakage(outer_steps=2, redraws=0), lenet(), images, labels)

    found = counts(monkeypatch, _Descent, "tick", run)
    expect_few(found)


def test_a_line_search_does_not_wait_either(monkeypatch):
    images, labels = images_and_labels(2)

    def run():
        attack(DeepLeakage(outer_steps=2, redraws=0, line_search="strong-wolfe"), lenet(), images, labels)

    found = counts(monkeypatch, _Descent, "tick", run)
    expect_few(found)
