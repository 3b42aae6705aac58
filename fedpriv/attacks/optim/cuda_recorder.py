"""Recording steps as CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

import torch


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
        with torch.cuda.stream(self._stream):
            yield
        here.wait_stream(self._stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None] | None:
        """Return a function that replays the step on the current stream; None where the device cannot record it."""
        graph = torch.cuda.CUDAGraph()
        try:
            with _without_garbage(), self.aside():
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    step()
                finally:
                    graph.capture_end()
        except RuntimeError:  # what cannot be recorded, and memory that ran out
            return None
        return graph.replay


def recorder_on(device: torch.device, *, recorded: bool = True) -> CudaRecorder | None:
    """Return the recorder of a device; None for a CPU, or where nothing is to be ``recorded``."""
    return CudaRecorder(device) if recorded and device.type == "cuda" else None


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
