"""A site of the job: one pass over its images by plain SGD in every round. It does not know that it is audited."""

import argparse

import nvflare.client as flare
import torch
from hospital import Net, load_data
from torch.nn.functional import cross_entropy

RATE, BATCH = 0.1, 8


def main() -> None:
    """Train what the server sends, and send it back, until the job ends."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--data", required=True)
    flare.init()
    images, labels = load_data(flare.get_site_name(), folder=arguments.parse_args().data)
    model = Net()
    while flare.is_running():
        received = flare.receive()
        model.load_state_dict({name: torch.as_tensor(value) for name, value in received.params.items()})
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for some, own in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            optimiser.zero_grad()
            cross_entropy(model(some), own).backward()
            optimiser.step()
        flare.send(flare.FLModel(params=model.state_dict(), metrics={}, current_round=received.current_round))


if __name__ == "__main__":
    main()
