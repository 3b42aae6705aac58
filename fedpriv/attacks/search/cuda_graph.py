"""CUDA graphs: a step of a search is recorded once on a GPU and replayed, one call in place of hundreds of kernels.

A recording reads and writes the memory that it was made with, so the numbers that a step hands on to the next are copied to
where the recording reads them. On a CPU, or where a step cannot be recorded (it waits for the device), the step is run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor


class Replay:
    """A step that is done again and again.

    Between two calls it keeps numbers in attributes of the ``owners`` only: tensors, which it changes in place or replaces
    (callers may replace them too), and lists of tensors that it changes in place. It depends on nothing else but the
    ``kind`` of a call, and on tensors that live as long.
    """

    def __init__(self, step: Callable[[], None], owners: Sequence[object], recorder: CudaRecorder | None) -> None:
        self._step, self._owners, self._recorder = step, owners, recorder
        self._kind: Hashable = None
        self.replays = 0
        self.reset()

    def reset(self) -> None:
        """Record anew, after a plain step: something that steps read was dropped."""
        self._recording: Callable[[], None] | None = None
        self._replaced: set[tuple[int, str]] | None = None  # owner and attribute; None before the plain step
        self._state: dict[tuple[int, str], object] = {}  # in the memory of the recording

    def __call__(self, kind: Hashable = 0) -> None:
        """Do a step; calls of one ``kind`` do the same operations."""
        if self._recorder is None:
            self._step()
            return
        if kind != self._kind or not self._bring_back():
            self._kind = kind
            self.reset()
        if self._replaced is None:
            before = self._attributes()
            with self._recorder.aside():
                self._step()
            self._replaced = {name for name, value in self._attributes().items() if value is not before.get(name)}
            return
        if self._recording is None:
            self._state = self._attributes()
            for name in self._replaced:  # memory of its own: what two attributes share must not change in both
                value = self._state[name]
                assert isinstance(value, Tensor)
                self._state[name] = value.detach().clone().requires_grad_(value.requires_grad)
            self._rebind()
            self._recording = self._recorder.record(self._step_back)
            self._rebind()
        if self._recording is None:
            self._recorder = None
            self._step()
        else:
            self.replays += 1
            self._recording()

    def _step_back(self) -> None:
        """Do a step that leaves its numbers where the next one reads them."""
        self._step()
        self._bring_back()

    def _bring_back(self) -> bool:
        """Copy replaced tensors into the recording's memory; False where these are none that its step replaces."""
        for (number, name), value in self._state.items():
            present = getattr(self._owners[number], name)
            if present is value:
                continue
            if (number, name) not in (self._replaced or ()) or present.shape != value.shape:  # type: ignore[attr-defined]
                return False
            with torch.no_grad():
                value.copy_(present)  # type: ignore[attr-defined]
            setattr(self._owners[number], name, value)
        return True

    def _attributes(self) -> dict[tuple[int, str], object]:
        return {
            (number, name): value
            for number, owner in enumerate(self._owners)
            for name, value in vars(owner).items()
            if isinstance(value, (Tensor, list))
        }

    def _rebind(self) -> None:
        for (number, name), value in self._state.items():
            setattr(self._owners[number], name, value)


class CudaRecorder:
    """Records steps as CUDA graphs, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Compute on the recorded stream: derivatives at a leaf are computed on the stream that first used it."""
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            here.wait_stream(self._stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None] | None:
        """Return a function that replays the step; None where the device cannot record it."""
        graph, waiting = torch.cuda.CUDAGraph(), torch.cuda.get_sync_debug_mode()
        gc.disable()  # memory of the device must not be freed while a step is recorded
        try:
            with self.aside(), torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                # Operations that wait for the device raise before they do: a recording broken off by one locks its memory.
                torch.cuda.set_sync_debug_mode("error")
                step()
        except RuntimeError:  # a step that cannot be recorded, or memory that ran out
            return None
        finally:
            torch.cuda.set_sync_debug_mode(waiting)
            gc.enable()
        return graph.replay


@functools.cache  # one for all searches: libraries keep memory for every stream that they ever computed on
def recorder_on(device: torch.device) -> CudaRecorder | None:
    """Return the recorder of a device; None for a CPU."""
    return CudaRecorder(device) if device.type == "cuda" else None
