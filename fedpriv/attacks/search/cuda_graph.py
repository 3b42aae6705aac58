"""CUDA graphs: a step of a search is recorded once on a GPU and replayed, one call in place of hundreds of kernels.

A recording reads and writes the memory that it was made with, so the numbers that a step hands on to the next are copied to
where the recording reads them. On a CPU, or where a step cannot be recorded (it waits for the device), the step is run.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_WARM_UP = 2
"""Steps of a kind that are run before one is recorded: whatever is made once is made in them."""

_Place = tuple[int, str]
"""Number of an owner, and name of its attribute."""


class Replay:
    """A step that is done again and again.

    Between two calls it keeps numbers in attributes of the ``owners`` only: tensors, or tuples and lists of them, which it
    changes in place or replaces; callers may replace them too. It depends on nothing else but the ``kind`` of a call.
    """

    def __init__(self, step: Callable[[], None], owners: Sequence[object], recorder: CudaRecorder | None) -> None:
        self._step, self._owners, self._recorder = step, owners, recorder
        self._kind: Hashable = None
        self._warm = 0
        self._recording: Callable[[], None] | None = None
        self._replaced: set[_Place] = set()  # by each step
        self._state: dict[_Place, Any] = {}  # in the memory of the recording
        self.replays = 0

    def __call__(self, kind: Hashable = 0) -> None:
        """Do a step; calls of one ``kind`` do the same operations."""
        if self._recorder is None:
            self._step()
            return
        if kind != self._kind or not self._bring_back():
            self._kind, self._warm, self._recording, self._state = kind, 0, None, {}
        if self._recording is None and self._warm < _WARM_UP:
            self._warm += 1
            before = self._attributes()
            with self._recorder.aside():
                self._step()
            self._replaced = {name for name, value in self._attributes().items() if value is not before.get(name)}
            return
        if self._recording is None:
            self._recording = self._recorded(self._recorder)
        if self._recording is None:
            self._recorder = None
            self._step()
        else:
            self.replays += 1
            self._recording()

    def warm_up_again(self) -> None:
        """Run steps before the next recording, if there is none yet: something that is made once was dropped."""
        self._warm = 0

    def _recorded(self, recorder: CudaRecorder) -> Callable[[], None] | None:
        """Return a recording that leaves the step's numbers where the next replay reads them; None if that fails."""
        # What a step replaces gets memory of its own: what two attributes share must not change in both.
        self._state = {
            name: _copied(value) if name in self._replaced else value for name, value in self._attributes().items()
        }
        self._rebind()

        def step() -> None:
            self._step()
            self._bring_back()

        try:
            return recorder.record(step)
        finally:
            self._rebind()

    def _bring_back(self) -> bool:
        """Copy replaced tensors into the recording's memory; False where these are no numbers that its step replaces."""
        for (number, name), value in self._state.items():
            present = getattr(self._owners[number], name)
            if present is value:
                continue
            targets, sources = _tensors(value), _tensors(present)
            if (number, name) not in self._replaced or [t.shape for t in targets] != [t.shape for t in sources]:
                return False
            with torch.no_grad():
                for target, source in zip(targets, sources, strict=True):
                    target.copy_(source)
            setattr(self._owners[number], name, value)
        return True

    def _attributes(self) -> dict[_Place, Any]:
        return {
            (number, name): value
            for number, owner in enumerate(self._owners)
            for name, value in vars(owner).items()
            if _tensors(value)
        }

    def _rebind(self) -> None:
        for (number, name), value in self._state.items():
            setattr(self._owners[number], name, value)


def _tensors(value: Any) -> list[Tensor]:
    several = value if isinstance(value, (tuple, list)) else [value]
    return list(several) if all(isinstance(item, Tensor) for item in several) else []


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    copies = [_copied(item) for item in value]
    return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)


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
        """Return a function that replays the step on the current stream; None where the device cannot record it."""
        graph, inputs = torch.cuda.CUDAGraph(), Inputs()
        waiting, collects = torch.cuda.get_sync_debug_mode(), gc.isenabled()
        gc.disable()  # memory of the device must not be freed while a step is recorded
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            # Operations that wait for the device raise before they do: a recording broken off by one locks its memory.
            torch.cuda.set_sync_debug_mode("error")
            try:
                with self.aside():
                    graph.capture_begin(capture_error_mode="thread_local")
                    try:
                        with inputs:
                            step()
                    except BaseException:
                        with contextlib.suppress(RuntimeError):
                            graph.capture_end()
                        raise
                    graph.capture_end()
            except RuntimeError:  # a step that cannot be recorded, or memory that ran out
                return None
            finally:
                torch.cuda.set_sync_debug_mode(waiting)
                if collects:
                    gc.enable()
        return functools.partial(_replay, graph, inputs.tensors)


@functools.cache  # one for all searches: libraries keep memory for every stream that they ever computed on
def recorder_on(device: torch.device, *, recorded: bool = True) -> CudaRecorder | None:
    """Return the recorder of a device; None for a CPU, or where nothing is to be ``recorded``."""
    return CudaRecorder(device) if recorded and device.type == "cuda" else None


def _replay(graph: torch.cuda.CUDAGraph, inputs: list[Tensor]) -> None:
    """Replay a graph; its ``inputs`` stay alive as long as the recording."""
    graph.replay()


class Inputs(TorchDispatchMode):
    """Watches operations within its block: ``tensors`` are those that they read and none of them had made before."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []
        self._known: set[int] = set()
        self._made: list[Tensor] = []  # kept, so that no other tensor gets their memory meanwhile

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._made = []

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, torch.Tensor) and _address(tensor) not in self._known:
                self._known.add(_address(tensor))
                self.tensors.append(tensor)
        result = operation(*args, **(kwargs or {}))
        made = [tensor for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        self._known.update(map(_address, made))
        self._made += made
        return result


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
