"""A process that runs clients' parts of rounds for another: ``python -m fedpriv.experiment.client_worker``.

By standard input come, pickled by the process that started this one, the configuration of a run with a number of threads,
then jobs: round, client, state, packed broadcast, and the fingerprint of the client's training images. Where they end, this
process does, whatever it is doing. By standard output go, pickled, ``("done", state, packed upload, trace)``,
``("refused", why)`` where training diverged, or ``("failed", why)``.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
from concurrent.futures import Future
from typing import Any, BinaryIO

from fedpriv.experiment.processes import own_output
from fedpriv.util.errors import UserError


def main() -> None:
    """Run clients until no more come."""
    asked: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
    given, output = os.fdopen(os.dup(0), "rb"), own_output()
    threading.Thread(target=_receive, args=(given, asked), daemon=True).start()
    import torch

    from fedpriv.experiment.federation import prepare
    from fedpriv.experiment.flower.wire import fingerprint
    from fedpriv.federation.engine import ClientJob, client_part
    from fedpriv.wire.message_files import packed, unpacked

    config, threads = asked.get().result()
    torch.set_num_threads(threads)
    federation = None
    while True:
        answer: tuple[object, ...]
        try:
            round_, client, state, broadcast, data = asked.get().result()
            federation = federation or prepare(config, torch.device("cpu"))
            if fingerprint(federation.clients[client]) != data:
                raise ChildProcessError(f"it finds other images of client {client}")
            job = ClientJob(round_, client, state, unpacked(broadcast))
        except Exception as error:
            answer = ("failed", f"{type(error).__name__}: {error}")
        else:
            try:
                done = client_part(federation, job)
                answer = ("done", done.state, packed(done.upload), done.trace.result())
            except UserError as error:
                answer = ("refused", str(error))
            except Exception as error:
                answer = ("failed", f"{type(error).__name__}: {error}")
        pickle.dump(answer, output.buffer, pickle.HIGHEST_PROTOCOL)
        output.buffer.flush()


def _receive(given: BinaryIO, asked: queue.SimpleQueue[Future[Any]]) -> None:
    while True:
        one: Future[Any] = Future()
        try:
            one.set_result(pickle.load(given))
        except EOFError:
            os._exit(0)  # an orphan must not go on
        except Exception as error:
            one.set_exception(error)
        asked.put(one)


if __name__ == "__main__":
    main()
