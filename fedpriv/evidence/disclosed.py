"""Labels that clients disclosed in all rounds that a run stored, up to the attacked one."""

from __future__ import annotations

from fedpriv.attacks.inputs.targets import Said, said
from fedpriv.federation.prepared import Federation
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.wire.kinds import TELLING


def disclosed_labels(run: RunDirectory, federation: Federation, round_: int | None = None) -> dict[int, Said]:
    """Return each client's images as its stored uploads tell of them, up to a round; None reads all.

    Empty where no upload of the method names classes, and where the server sees sums of uploads only.
    """
    if federation.pipeline.server_view == "sum" or not any(kind in TELLING for kind in federation.uploads):
        return {}
    paths: dict[int, list[int]] = {}
    for number, clients in sorted(run.captured_rounds().items()):
        if round_ is None or number <= round_:
            for client in clients:
                paths.setdefault(client, []).append(number)
    return {
        client: said(run.message(run.upload_path(number, client)) for number in numbers)
        for client, numbers in sorted(paths.items())
    }
