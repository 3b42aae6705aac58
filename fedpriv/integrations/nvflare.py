"""NVFlare's side of recorder and guard: filters that show a server's messages to a recorder, or judge a client's results.

NVFlare makes filters where the job runs, from their class and arguments, one for each direction; those of one folder share
a recorder there.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, cast

from fedpriv.integrations.guarding import Action, Watch
from fedpriv.integrations.recorder import Recorder, plain_sets, to_stderr
from fedpriv.util.errors import UserError

ROUND: Final = "current_round"
"""Header, property of contexts and of data by which NVFlare's workflows tell the round; counted from 0."""
TASK: Final = "__task_name__"
DIRECTION: Final = "__filter_dir__"
PROCESS: Final = "__process_type__"
GONE: Final = "_end_run"  # the event that ends a job
SENT: Final = "_after_task_data_filter"  # the event after which a client has what it was sent
HISTORY: Final = "filter_history"  # property of data: names of the filters that changed it
ALGORITHM: Final = "PROCESSED_ALGORITHM"  # property of data: what it was encrypted by
NESTED: Final = 8  # collections within collections that are followed


@dataclass
class Shared:
    """A recorder and what it has seen, for all filters of one folder in this process."""

    recorder: Recorder  # of the folder
    rounds: dict[tuple[str, str], int] = field(default_factory=dict)  # (phase, client) -> round of the last broadcast
    open: dict[tuple[int, str], None] = field(default_factory=dict)  # (round, phase) that may still be answered

    def settle(self, phase: str | None = None, before: int | None = None) -> None:
        """Tell the recorder which rounds get no more answers: those of a phase before another, or all."""
        for round_, requested in list(self.open):
            if (phase is None or requested == phase) and (before is None or round_ < before):
                del self.open[round_, requested]
                self.recorder.settled(round_, phase=requested)


_shared: dict[str, Shared] = {}
_lock = threading.RLock()


class RecordingFilter:
    """A filter of a server, for results and for task data alike: records what passes, and passes it on unchanged.

    Add one to each: ``add_server_input_filter`` for uploads, ``add_server_output_filter`` for broadcasts, both with the same
    folder on the server's machine, ``path``, from the working directory of the script that makes the job. Filters are
    applied in the order they are given: a recorder before others sees what crossed the wire. A fault of the recorder is
    told in one line on standard error, recording stops, and the job goes on.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = str(Path(path).absolute())  # a simulated server has another working directory

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Show a message to the recorder and return it."""
        try:
            with _lock:
                if self.path not in _shared:
                    version = f"nvflare {metadata.version('nvflare')}"
                    _shared[self.path] = Shared(Recorder(self.path, version, named_by_data=True))
                    if not _shared[self.path].recorder.stopped:
                        to_stderr(f"recording what the server sees: {self.path}")
                shared = _shared[self.path]
                with shared.recorder.guarded():
                    if not shared.recorder.stopped:
                        _show(shared, shareable, fl_ctx)
        except Exception as error:  # whatever it is, the job is not ours to break
            to_stderr(f"not recorded: {type(error).__name__}: {error}")
        return shareable

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Let go of the recorded run where the job ends."""
        if event_type != GONE:
            return
        with _lock:
            shared = _shared.pop(self.path, None)
            if shared is not None:
                shared.settle()
                shared.recorder.close()


class GuardingFilter:
    """A filter of a client's results that attacks an update before it is sent, by :func:`fedpriv.guard`.

    ``facts`` names a function, ``module:NAME``, of the site's name; it returns the arguments of the guard but the upload.
    ``action`` is ``log``, or ``drop``: of a leak no array is sent, and NVFlare's FedAvg passes over an empty result (of a
    round it needs one that is not). With ``also_inconclusive`` what was not decided is dropped too.
    """

    def __init__(self, facts: str, action: str = "log", also_inconclusive: bool = False) -> None:
        super().__init__()
        self.facts, self.action, self.also_inconclusive = facts, action, also_inconclusive
        self._watch = Watch(self._given, cast(Action, action), also_inconclusive)
        self._before: dict[str, Any] = {}

    def _given(self, site: str) -> Any:
        module, _, name = self.facts.partition(":")
        return getattr(importlib.import_module(module), name)(site)

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Keep what the client is sent."""
        if event_type == SENT:
            self._before = _weights(fl_ctx.get_prop("__task_data__"))[1]

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Judge a result; return it, or the same without arrays."""
        data, after = _weights(shareable)
        added = str(getattr(data, "data_kind", "")).endswith("WEIGHT_DIFF")
        if data is None or not self._watch.withholds(fl_ctx.get_identity_name(), self._before, after, added):
            return shareable
        data.data = {}
        return data.update_shareable(shareable)


def _weights(shareable: Any) -> tuple[Any, dict[str, Any]]:
    """Return what a message holds, and copies of its arrays where these are weights; None of what holds nothing."""
    from nvflare.apis.dxo import from_shareable

    sets: dict[str, dict[str, Any]] = {}
    try:
        data = from_shareable(shareable)
        _collect(data, "", sets, {})
        plain = plain_sets({name: sets[name] for name in ("WEIGHTS", "WEIGHT_DIFF") if name in sets})[0]
        return data, next(iter(plain.values()), {})
    except Exception:  # an error, or a message of another kind
        return None, {}


def filter_class(module: str, name: str) -> type:
    """Return a filter of NVFlare, which jobs find under a name in a module: ``Record`` or ``Guard``."""
    try:
        from nvflare.apis.filter import Filter
    except ImportError as error:
        raise UserError(
            f"filters of NVFlare jobs need NVFlare ({error}); install it with: pip install 'fedpriv[nvflare]'"
        ) from error
    kind = GuardingFilter if name == "Guard" else RecordingFilter
    return type(name, (kind, Filter), {"__module__": module, "__doc__": kind.__doc__})


def _show(shared: Shared, shareable: Any, fl_ctx: Any) -> None:
    from nvflare.apis.dxo import from_shareable

    if str(fl_ctx.get_prop(PROCESS, "")).startswith("C"):
        raise UserError(
            "fedpriv.nvflare.Record belongs on the server: add_server_input_filter, add_server_output_filter"
        )
    direction = fl_ctx.get_prop(DIRECTION)
    if direction not in ("in", "out"):
        raise UserError(f"NVFlare names no direction of a message, but {direction!r}; expected 'in' or 'out'")
    peer, recorder = fl_ctx.get_peer_context(), shared.recorder
    client = str(peer.get_identity_name()) if peer is not None else ""
    phase = str(fl_ctx.get_prop(TASK) or shareable.get_header(TASK) or "train")
    sets: dict[str, dict[str, Any]] = {}
    properties: dict[str, Any] = {}
    if shareable.get("DXO"):
        _collect(from_shareable(shareable), "", sets, properties)
    # An answer that names no round is to the last that its client was sent.
    last = shared.rounds.get((phase, client)) if direction == "in" else None
    named = (shareable.get_header(ROUND), properties.get(ROUND), last, fl_ctx.get_prop(ROUND))
    round_ = next((value for value in named if isinstance(value, int) and not isinstance(value, bool)), None)
    if round_ is None:
        raise UserError(
            f"a message of task {phase!r} names no round: no header {ROUND!r}, and no property of that name"
        )
    if direction == "out":
        shared.settle(phase, round_)
        shared.rounds[phase, client] = round_
        shared.open[round_, phase] = None
        recorder.broadcast(round_, [client], sets, phase=phase, facts=properties)
        return
    code = str(shareable.get_return_code("OK"))
    if code != "OK":
        recorder.failed(round_, client, f"return code {code}", phase=phase)
        return
    if properties.get(ALGORITHM):
        recorder.told(f"uploads are encrypted by {properties[ALGORITHM]}: nothing of them can be attacked")
    if any(name.rpartition("/")[2] == "WEIGHT_DIFF" for name in sets):
        properties["difference"] = True  # tells readers that the arrays are differences from the broadcast
    recorder.upload(round_, client, sets, phase=phase, facts=properties)


def _collect(
    data: Any, under: str, sets: dict[str, dict[str, Any]], properties: dict[str, Any], depth: int = 0
) -> None:
    kind = str(getattr(data.data_kind, "value", data.data_kind))
    for name, value in (data.meta or {}).items():
        properties.setdefault(str(name), " ".join(map(str, value)) if name == HISTORY else value)
    if not isinstance(data.data, Mapping):
        return
    if kind == "COLLECTION" and depth < NESTED:
        for name, part in data.data.items():
            if hasattr(part, "data_kind"):
                _collect(part, f"{under}{name}/", sets, properties, depth + 1)
        return
    properties.setdefault("data_kind", kind)
    if kind in ("WEIGHTS", "WEIGHT_DIFF"):
        sets[f"{under}{kind}"] = {str(name): value for name, value in data.data.items()}
        return
    for name, value in data.data.items():
        properties.setdefault(f"{under}{name}", value)
