"""A guarantee is never told without what it rests on."""

from looped import each

from fedpriv.pages.privacy import guarantee

APPROXIMATE = {
    "defense": "dp-sgd",
    "epsilon": 7.99923,
    "epsilon_of_weights": 7.99923,
    "delta": 1e-05,
    "noise_multiplier": 0.5579833984375,
    "clip": 1.0,
    "norm": "L2",
    "unit": "image",
    "neighbours": "one image more or less",
    "given": "the accounting is for Poisson samples, which shuffled batches are not: an approximation",
    "not_protected": ["how many images the client holds", "when"],
    "sampling": "batches",
    "sample_rate": 0.02666666,
    "releases": 57,
    "model_changes": ["resnet: 5 layers of group normalisation in place of batch normalisation"],
    "accountant": "Renyi DP",
}
CONDITIONAL = {
    "defense": "dp-noise",
    "epsilon": 8.0,
    "delta": 1e-05,
    "bound": 5.0,
    "given": "the client's extractor, though it was trained on the same images",
    "sensitivity": "2 S / 1 (the floor on n_c) of a row",
    "releases": 4,
    "a_later_condition": "holds on Sundays",
}


@each("record", [APPROXIMATE, CONDITIONAL])
def test_no_condition_is_dropped(record):
    told = " ".join(value for _, value in guarantee("fedgh", record).conditions)
    for key, value in record.items():
        if key not in ("defense", "epsilon", "epsilon_of_weights", "delta", "releases"):
            for part in value if isinstance(value, list) else [value]:
                assert (f"{part:.4g}" if isinstance(part, float) else part) in told, key


def test_what_is_covered_in_part_or_not_at_all():
    part = guarantee("a", {"defense": "dp-sgd", "epsilon": None, "epsilon_of_weights": 2.0, "releases": 3})
    assert part.words == "a, dp-sgd: epsilon 2 of the trained weights, none of uploads over 3 releases"
    none = guarantee("a", {"defense": "noise", "epsilon": None, "given": "", "model_changes": []})
    assert (none.words, none.conditions) == ("a, noise: no guarantee over ? releases", ())
