"""Measure the share of a round that the Flower recorder takes: ``python benchmarks/recorder_share.py [--images 500]``.

A federation as Flower's own PyTorch template has it: ten clients, a small convolutional network on colour images of 32x32
(62,006 parameters), FedAvg, one epoch in batches of 32. Clients run one after the other in this process, so a round holds
training and no transport: with it, and with processes to start, the share is smaller. Images are random; their values
change no time. The recorder's time is what its grid takes beyond the grid that it passes messages on to.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from flower_cases import ArrayRecord, ClientApp, LocalGrid, Message, MetricRecord, RecordDict
from flwr.app import Context
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedpriv.recording.flower import RecordingGrid
from fedpriv.recording.recorder import Recorder


class Net(nn.Module):
    """A network of the template's size."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        """Return logits ``(n, 10)``."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def client_app(images: int) -> ClientApp:
    """Return clients that train for one epoch on random images."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        net = Net()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        for _ in range(images // 32):
            optimizer.zero_grad()
            F.cross_entropy(net(torch.rand(32, 3, 32, 32)), torch.randint(10, (32,))).backward()
            optimizer.step()
        reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": images})}
        return Message(RecordDict(reply), reply_to=message)

    return app


class Timed:
    """Adds up the seconds that a grid takes to send and receive."""

    def __init__(self, inner):
        self._inner, self.seconds = inner, 0.0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def send_and_receive(self, messages, *, timeout=None):
        """Pass on, and look at the clock."""
        begun = time.perf_counter()
        try:
            return self._inner.send_and_receive(messages, timeout=timeout)
        finally:
            self.seconds += time.perf_counter() - begun


def measure(clients: int, images: int, rounds: int) -> tuple[float, float]:
    """Return seconds a round, and those of them that the recorder took."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        inner = Timed(LocalGrid(client_app(images), {7 + k: k for k in range(clients)}))
        shown = RecordingGrid(inner, Recorder(Path(folder) / "run", "benchmark"))
        outer, app = Timed(shown), ServerApp()

        @app.main()
        def main(grid, context):
            strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=clients)
            strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=rounds)

        begun = time.perf_counter()
        app(outer, Context(1, 0, {}, RecordDict(), {}))
        whole = time.perf_counter() - begun
        shown.end()
    return whole / rounds, (outer.seconds - inner.seconds) / rounds


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument(
        "--images", type=int, default=5000, help="of each client; the template's CIFAR-10 has 4,000 to 5,000"
    )
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    whole, own = measure(asked.clients, asked.images, asked.rounds)
    print(
        f"{asked.clients} clients, {asked.images} images each, {asked.rounds} rounds: {whole:.2f} s a round, of these "
        f"{own:.3f} s the recorder: {100 * own / whole:.1f} %"
    )


if __name__ == "__main__":
    main()
