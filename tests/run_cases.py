"""Small runs as a run directory holds them, written without training."""

import torch
from eval_cases import finished
from federations import small

from fedpriv.defenses import build_defenses
from fedpriv.federation.defense import defense_facts
from fedpriv.federation.run_directory import RunDirectory
from fedpriv.federation.summary import RoundLine
from fedpriv.uploads.ledger import count, entries
from fedpriv.uploads.messages import message_bytes
from fedpriv.uploads.payloads import Entangled, Prototypes
from fedpriv.util.files import write_all

# Two clients with 10 and 30 test images. Pooled after training: 10/40, 28/40, 36/40.
TRAINED = [[[5, 10], [5, 30]], [[4, 10], [24, 30]], [[9, 10], [27, 30]]]
RECEIVED = [[[2, 10], [6, 30]], [[2, 10], [6, 30]], [[3, 10], [6, 30]]]


def prototypes(round_, client, classes=3, width=5):
    features = torch.randn(classes, width, generator=torch.Generator().manual_seed(100 * round_ + client))
    return (Prototypes(features, torch.arange(classes), torch.ones(classes, dtype=torch.int64)),)


def entangled(round_, client):
    return (Entangled(torch.randn(5, generator=torch.Generator().manual_seed(client)), torch.ones(3) / 3),)


def make_run(path, method="fedgh", upload=prototypes, *, capture="all", extra=None, finish=True, **settings):
    """Write a run of three rounds in which nothing is broadcast."""
    config = small(method, clients=2, rounds=3, capture=capture, **settings)
    run = RunDirectory.create(path, config)
    for round_, (trained, received) in enumerate(zip(TRAINED, RECEIVED, strict=True), start=1):
        clients = {"after_training": trained, "after_broadcast": received, **(extra or {})}
        rows = [row for k in range(2) for row in entries(upload(round_, k), round_, k, "upload")]
        line = RoundLine(round=round_, participants=(0, 1), accuracy={}, clients=clients, communication=count(rows))
        ledger = [vars(row) | {"shape": list(row.shape)} for row in rows]
        run.append({"metrics": [line.model_dump(mode="json")], "ledger": ledger})
        if capture != "none":
            for k in range(2):
                about = {"round": round_, "client": k, "direction": "upload"}
                content = message_bytes(upload(round_, k), about)
                write_all({run.upload_path(round_, k): content})
    if finish:
        run.finish(finished(config, defenses=tuple(map(defense_facts, build_defenses(run.config.defenses)))))
    return path
