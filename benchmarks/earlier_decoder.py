"""``decoder`` as it was at commit a39969e, on representations that ``decoder_versions.py`` wrote; it imports that code.

    PYTHONPATH=CHECKOUT python benchmarks/earlier_decoder.py FILE

Three rows: its default, its pixels fitted for 300 steps, and its weights and code fitted together under total variation
(that was measured at the time, but never part of the code: here it is written anew).
"""

import argparse
import copy
import importlib
import math
import time
from pathlib import Path

import torch


def there(module: str, name: str):
    """Return a name of that commit's code: looked up as it runs, for today's code has other modules."""
    return getattr(importlib.import_module(f"fedpriv.{module}"), name)


DecoderInversion = there("attacks.decoder", "DecoderInversion")
DecoderTraining = there("attacks.decoder_network", "DecoderTraining")
train_decoder = there("attacks.decoder_network", "train_decoder")
relative_feature_distance = there("attacks.objectives", "relative_feature_distance")
list_targets = there("attacks.target_features", "list_targets")
derive_seed = there("seeds", "derive_seed")
Representations = there("uploads", "Representations")
Knowledge = there("attacks.observation", "Knowledge")
KnowledgeCard = there("attacks.observation", "KnowledgeCard")
Observation = there("attacks.observation", "Observation")
total_variation = there("attacks.priors.pixels", "total_variation")
build_model = there("models.build", "build_model")
Blueprint = there("models.split", "Blueprint")

SMOOTH = 0.02
"""Weight of total variation in fitting weights."""


def fine_tuned(represent, decoder, vector, steps, rate):
    """Return the image ``(c, h, w)`` of one vector after steps over a copy of the decoder's weights and its code."""
    network = copy.deepcopy(decoder.network).requires_grad_(True)
    code = ((vector - decoder.mean) / decoder.spread)[None].clone().requires_grad_(True)
    optimiser = torch.optim.Adam([code, *network.parameters()], lr=rate)
    lowest, best = math.inf, None
    for step in range(steps):
        image = network(code)
        value = (relative_feature_distance(represent(image), vector[None]) + SMOOTH * total_variation(image, 1.0)).sum()
        if value.item() < lowest:
            lowest, best = value.item(), image.detach()
        optimiser.zero_grad()
        value.backward()
        optimiser.param_groups[0]["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.step()
    return best[0]


def main():
    """Read, attack, write the images and CPU seconds of each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3], help="first step sizes over weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    given = torch.load(options.file)
    blueprint = Blueprint("cnn4", tuple(given["own"].shape[1:]), given["classes"], 512)
    model = build_model(blueprint, 0)
    model.load_state_dict(given["weights"])
    model.eval().requires_grad_(False)
    seen = (Observation(0, 0, (Representations(given["vectors"], given["labels"]),), ()),)
    card = KnowledgeCard(attacker_data="same_domain")
    known = Knowledge(
        card,
        blueprint.image_shape,
        given["classes"],
        extractors={0: model.represent},
        public_images=given["own"],
        public_labels=given["own_labels"],
    )
    found = {}
    for name, refine in (("decoder, earlier default", 0), ("decoder, earlier, refine=300", 300)):
        began = time.process_time()
        attack, targets = DecoderInversion(refine=refine), list_targets(seen, "representation")
        done = attack.run(seen, targets, known, seed=0, device=torch.device("cpu"))
        found[name] = done.images[:, 0], time.process_time() - began
    began = time.process_time()
    features = torch.cat([model.represent(part) for part in given["own"].split(256)])
    decoder = train_decoder(features, given["own"], DecoderTraining(800, 2e-3, 32, 64), derive_seed(0, 0, 0))
    trained = time.process_time() - began
    for rate in options.rates:
        began = time.process_time()
        images = torch.stack([fine_tuned(model.represent, decoder, one, 300, rate) for one in given["vectors"]])
        found[f"decoder, earlier, weights and code fitted ({rate:g})"] = images, trained + time.process_time() - began
    torch.save(found, options.file.with_suffix(".earlier"))


if __name__ == "__main__":
    main()
