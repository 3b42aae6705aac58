"""The tensors that a piece of work reads and did not make itself.

Recording steps as CUDA graphs.

A step of a loop, recorded once on a GPU and replayed: one call where the host would ask for hundreds of kernels.

A recording reads and writes the memory that it was made with, so whatever a step hands on to the next is copied to where the
recording reads it. A recording is used only if its first replay leaves every number as the step itself does. On a CPU, or
where a step cannot be recorded (something in it asks the device), the step is simply done.

"""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Reads(TorchDispatchMode):
    """Watches operations within its block, derivatives among them.

    Attributes:
        tensors: what operations were given and none of them had made before, each once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Tensor] = []
        self._known: set[int] = set()
        self._made: list[Tensor] = []  # held, so that no other tensor is given their memory meanwhile

    def __exit__(self, *given: Any) -> None:
        """Let go of what was made."""
        super().__exit__(*given)  # type: ignore[no-untyped-call]
        self._made = []

    def __torch_dispatch__(
        self, operation: Any, types: Sequence[type], given: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        """Do an operation, and note what is new to it."""
        named = named or {}
        for tensor in _of((given, named)):
            if _place(tensor) not in self._known:
                self._known.add(_place(tensor))
                self.tensors.append(tensor)
        found = operation(*given, **named)
        made = _of(found)
        self._known.update(map(_place, made))
        self._made += made
        return found


def _of(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


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


_BEFORE = 2
"""Steps of a kind that are done as they are before one is recorded: what is made once is made in them."""

_Place = tuple[int, str]
"""Which owner, and which attribute of it."""


class Recorder(Protocol):
    """Records steps on a device."""

    def aside(self) -> AbstractContextManager[None]:
        """Compute within the block as what is recorded would be computed."""
        ...

    def record(self, step: Callable[[], None]) -> Callable[[], None] | None:
        """Return a function that does the step; None for one that cannot be recorded. Nothing has been computed then."""
        ...


class Replay:
    """A step that is done again and again.

    Args:
        step: does the step. Between two calls it keeps numbers in attributes of the ``owners`` only, as tensors, or as
            tuples or lists of them; it may change such a tensor or put another in its place. What it does hangs on
            nothing else but the ``kind`` that it is called with.
        owners: objects whose attributes those are. Whoever rebinds one of them between calls need not say so.
        recorder: of the device; None to record nothing.

    Attributes:
        replays: steps that were replayed.
    """

    def __init__(self, step: Callable[[], None], owners: Sequence[object], recorder: Recorder | None) -> None:
        self._step, self._owners, self._recorder = step, owners, recorder
        self._kind: Hashable = None
        self._done = 0
        self._rebound: set[_Place] = set()
        self._recording: Callable[[], None] | None = None
        self._recorded: dict[_Place, Any] = {}
        self.replays = 0

    def __call__(self, kind: Hashable = 0) -> None:
        """Do a step; calls of one ``kind`` do the same operations. None is a kind that is never recorded."""
        if self._recorder is None or kind is None:
            self._step()
            return
        if kind != self._kind or not self._at_home():
            self._kind, self._done, self._recording, self._recorded = kind, 0, None, {}
        if self._recording is not None:
            self.replays += 1
            self._recording()
        elif self._done < _BEFORE:
            self._done += 1
            before = self._held()
            with self._recorder.aside():
                self._step()
            self._rebound = {place for place, value in self._held().items() if value is not before.get(place)}
        else:
            self._record(self._recorder)

    def begin_anew(self) -> None:
        """Have steps done as they are before the next recording, if there is none yet: what was made once was dropped."""
        self._done = 0

    def _held(self) -> dict[_Place, Any]:
        """Return the attributes of the owners that are tensors, or several together."""
        return {
            (number, name): value
            for number, owner in enumerate(self._owners)
            for name, value in vars(owner).items()
            if _tensors(value)
        }

    def _at_home(self) -> bool:
        """Bring what was put in another place to where the recording reads it; False where that cannot be."""
        if self._recording is None:
            return True
        now = self._held()
        if now.keys() != self._recorded.keys():
            return False
        moved = [place for place, value in now.items() if value is not self._recorded[place]]
        for place in moved:
            before, after = _tensors(self._recorded[place]), _tensors(now[place])
            if place not in self._rebound or [one.shape for one in before] != [one.shape for one in after]:
                return False
        for place in moved:
            _fill(self._recorded[place], _tensors(now[place]))
        self._bring_back()
        return True

    def _bring_back(self) -> None:
        for (owner, name), value in self._recorded.items():
            setattr(self._owners[owner], name, value)

    def _record(self, recorder: Recorder) -> None:
        """Record a step, and do one; the recording is kept if it does the same."""
        # In memory of its own: what stands in two places must not change in both.
        self._recorded = {
            place: _copied(value) if place in self._rebound else value for place, value in self._held().items()
        }
        self._bring_back()
        before = {place: _values(value) for place, value in self._recorded.items()}
        recording = self._made(recorder)
        if recording is None:
            self._recorder = None
            self._step()
            return
        recording()
        found = {place: _values(value) for place, value in self._recorded.items()}
        for place, value in self._recorded.items():
            _undo(value, before[place])
        with recorder.aside():
            self._step()
        now = self._held()
        if all(_alike(values, _values(now[place])) for place, values in found.items()):
            self._recording = recording
        else:
            self._recorder = None

    def _made(self, recorder: Recorder) -> Callable[[], None] | None:
        """Return a recording after which everything is where it was before, or None where there is none."""
        foreign: set[_Place] = set()

        def there_and_back() -> None:
            self._step()
            now = self._held()
            moved = {place for place, value in now.items() if value is not self._recorded.get(place)}
            for place in moved & self._rebound:
                _fill(self._recorded[place], _tensors(now[place]))
            foreign.update(moved - self._rebound)

        try:
            recording = recorder.record(there_and_back)
        finally:
            self._bring_back()
        return None if foreign else recording


def _tensors(value: Any) -> list[Tensor]:
    several = value if isinstance(value, (tuple, list)) else [value]
    return list(several) if all(isinstance(one, Tensor) for one in several) else []


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    copies = [_copied(one) for one in value]
    return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)


def _own(value: Any) -> list[Tensor]:
    """Return the tensors that are no views: the numbers of those are another tensor's."""
    return [one for one in _tensors(value) if not one._is_view()]


def _values(value: Any) -> list[Tensor]:
    return [one.detach().clone() for one in _own(value)]


def _fill(value: Any, numbers: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for one, other in zip(_own(value), numbers, strict=True):
            one.copy_(other)


def _undo(value: Any, numbers: Sequence[Tensor]) -> None:
    """Fill in numbers where others are. What is only read is not written to: results kept for it would count as outdated."""
    with torch.no_grad():
        for one, other in zip(_own(value), numbers, strict=True):
            if not torch.equal(one, other):
                one.copy_(other)


def _alike(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    """True where all numbers are the same; two that are none count as the same."""
    same = [
        torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())
        for one, other in zip(first, second, strict=True)
    ]
    return all(same)
