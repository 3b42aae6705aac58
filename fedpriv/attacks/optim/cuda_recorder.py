"""Recording steps as CUDA graphs."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator

import torch

from fedpriv.attacks.optim.reads import Reads


class CudaRecorder:
    """Records what a step asks of a GPU.

    Args:
        device: which.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Compute on the stream that is recorded: derivatives at a leaf are computed on the stream that first used it."""
        here = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            here.wait_stream(self._stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None] | None:
        """Return a function that replays the step on the current stream; None where the device cannot record it."""
        graph, reads = torch.cuda.CUDAGraph(), Reads()
        try:
            with _without_garbage(), _refusing_to_wait(), self.aside():
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    with reads:
                        step()
                except BaseException:
                    with contextlib.suppress(RuntimeError):
                        graph.capture_end()
                    raise
                graph.capture_end()
        except RuntimeError:  # what cannot be recorded, and memory that ran out
            return None
        return _Recording(graph, reads)


class _Recording:
    """A graph, and the tensors that it reads and somebody else made: whoever kept those may drop them meanwhile."""

    def __init__(self, graph: torch.cuda.CUDAGraph, reads: Reads) -> None:
        self._graph, self._held = graph, reads.tensors

    def __call__(self) -> None:
        """Replay."""
        self._graph.replay()


def recorder_on(device: torch.device, *, recorded: bool = True) -> CudaRecorder | None:
    """Return the recorder of a device; None for a CPU, or where nothing is to be ``recorded``."""
    return _recorder_of(device) if recorded and device.type == "cuda" else None


@functools.cache
def _recorder_of(device: torch.device) -> CudaRecorder:
    # One for all searches: libraries keep memory of their own for every stream that they ever computed on.
    return CudaRecorder(device)


@contextlib.contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Have whatever waits for the device raise before it does: a recording that was broken off leaves its memory locked."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


@contextlib.contextmanager
def _without_garbage() -> Iterator[None]:
    """Collect no garbage within the block: memory of the device must not be freed while it is recorded."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
