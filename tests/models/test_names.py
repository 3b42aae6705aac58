import pytest

from fedpriv.models import FAMILIES, default_width, family


def test_fedre_10_starts_with_the_eight_convolutional_networks_and_ends_with_the_transformers():
    members = family("fedre-10")
    assert members[:4] == ("cnn4", "googlenet", "mobilenet-v2", "resnet18") == family("htfe-4")
    assert members[4:] == ("resnet34", "resnet50", "resnet101", "resnet152", "vit-b16", "vit-b32")


def test_fedrals_families_hold_the_resnets_of_its_text():
    resnets = tuple(f"resnet{n}" for n in (4, 6, 8, 10, 18, 34, 50, 101, 152))
    assert family("fedral-5") == resnets[4:]
    assert family("fedral-11") == (*resnets, "cnn4", "vit-b16")
    assert family("htfe-9") == resnets


def test_lists_keep_order_and_repeats():
    assert family("cnn4, resnet18,cnn4") == ("cnn4", "resnet18", "cnn4")
    assert family("resnet18,small")[1:] == FAMILIES["small"]


@pytest.mark.parametrize(
    ("name", "image_shape", "width"),
    [
        ("fedre-10", (3, 32, 32), 512),
        ("cnn4", (3, 64, 64), 512),
        ("fedmrl-5", (3, 32, 32), 500),
        ("fedmrl-5", (1, 28, 28), 50),
        ("lenet-sigmoid", (3, 32, 32), 768),
        ("lenet-sigmoid", (1, 8, 8), 48),
        ("lenet-sigmoid", (1, 9, 10), 108),
        ("small", (1, 8, 8), 128),
        ("fedhenn-5", (3, 32, 32), 128),
        ("resnet6", (3, 32, 32), 128),
        ("fedral-5", (3, 64, 64), 512),
        ("htfe-9", (3, 32, 32), 64),
        ("small-cnn,cnn4", (3, 32, 32), 128),
    ],
)
def test_default_widths(name, image_shape, width):
    assert default_width(name, image_shape) == width
