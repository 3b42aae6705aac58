"""Comparisons of tensors that fail in one line: what was compared, by how much it differs, where, what was allowed."""

import sys
from linecache import getline

import torch


def told(what, depth=2):
    """Return what a comparison is called: its name, or else the line of the test that asked for it."""
    frame = sys._getframe(depth)
    return what or getline(frame.f_code.co_filename, frame.f_lineno).strip()


def refuse(what, found, wanted, allowed):
    """Raise for two tensors that are not alike, in one line."""
    __tracebackhide__ = True
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        left, right = ((tuple(one.shape), str(one.dtype).removeprefix("torch.")) for one in (found, wanted))
        raise AssertionError(f"{what}: {left[1]} {left[0]} is not {right[1]} {right[0]}")
    difference = (found.detach().double() - wanted.detach().double()).abs().nan_to_num(torch.inf)
    unlike = difference > (allowed or 0)
    worst = int(difference.argmax())
    where = tuple(int(index) for index in torch.unravel_index(torch.tensor(worst), difference.shape))
    raise AssertionError(
        f"{what}: {found.flatten()[worst].item():.6g} is not {wanted.flatten()[worst].item():.6g} at {where}; largest "
        f"difference {float(difference.max()):.3g}, allowed {allowed:.3g}, in {int(unlike.sum())} of {found.numel()}"
    )


def expect_same(found, wanted, what=""):
    """Ask that two tensors are equal to the last bit."""
    __tracebackhide__ = True
    if not torch.equal(found, wanted):
        refuse(told(what), found, wanted, 0.0)


def expect_close(found, wanted, rtol=1e-5, atol=1e-8, what=""):
    """Ask that ``|found - wanted| <= atol + rtol |wanted|`` in every number, as ``torch.allclose`` does."""
    __tracebackhide__ = True
    if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol, atol):
        refuse(told(what), found, wanted, atol + rtol * float(wanted.abs().max()) if wanted.numel() else atol)


def expect_rows_close(found, wanted, within, what="", share=0.75):
    """Ask that most rows agree, to ``within`` in every number, after some steps of an optimiser that takes signs.

    Where a weight's gradient is no larger than its rounding, another order of summation turns its sign, and that row goes
    another way: about one in a hundred (of 160 after 5 steps 95 % were within 3e-6, one was off by 0.04). What makes a
    result depend on its company (a shared generator, a sum over the wrong axis) moves most rows, and by far more.
    """
    __tracebackhide__ = True
    if found.shape != wanted.shape:
        refuse(told(what), found, wanted, within)
    worst = (found - wanted).abs().reshape(len(found), -1).amax(1)
    fine = (worst <= within).double().mean()
    if fine < share:
        largest = ", ".join(f"{value:.2g}" for value in worst.sort(descending=True).values[:4].tolist())
        raise AssertionError(
            f"{told(what)}: {fine:.0%} of {len(found)} rows within {within:.3g}, at least {share:.0%} wanted; "
            f"largest differences {largest}"
        )
