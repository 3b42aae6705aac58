"""TinyImageNet and folders of images, in the layouts of the originals."""

import os
import tracemalloc
import zlib

import numpy as np
import pytest
from image_cases import first_pixels, refused
from PIL import Image

from fedpriv.datasets import SourceOptions, load_dataset


def flat_image(path, value, size=(5, 5), mode="RGB"):
    """Write an image of one value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value,) * len(mode)).save(path)


@pytest.fixture
def tiny(tmp_path):
    """Three classes listed, two there; the validation part in one folder, in an order unlike the classes'."""
    root = tmp_path / "tiny-imagenet-200"
    for wnid, values in (("n02", (10, 20)), ("n01", (30, 40))):
        for number, value in enumerate(values):
            flat_image(root / "train" / wnid / "images" / f"{wnid}_{number}.png", value)
    for number, value in enumerate((50, 60, 70)):
        flat_image(root / "val" / "images" / f"val_{number}.png", value)
    (root / "wnids.txt").write_text("n02\nn03\nn01\n")
    (root / "words.txt").write_text("n01\tcrane, bird\nn02\tcrane\nn03\tkoala\n")
    rows = ["val_2.png\tn02\t0\t0\t4\t4", "val_0.png\tn01\t0\t0\t4\t4", "val_1.png\tn01\t0\t0\t4\t4"]
    (root / "val" / "val_annotations.txt").write_text("\n".join(rows) + "\n")
    return root


def test_tiny_imagenet_takes_validation_labels_from_the_annotations(tiny):
    for given in (tiny, tiny.parent):
        dataset = load_dataset("tiny-imagenet", SourceOptions(given))
        assert first_pixels(dataset) == [10, 20, 30, 40, 50, 60, 70]
        assert dataset.samples.labels.tolist() == [0, 0, 1, 1, 1, 1, 0]
        assert dataset.class_names == ("crane (n02)", "crane (n01)")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_0.png\tn03\t0", "val_annotations.txt line 2: image val_0.png is of class n03, which has no folder"),
        ("val_9.png\tn01\t0", "line 2: image .*val_9.png is not there"),
        ("val_2.png\tn01\t0", "line 2: image val_2.png is annotated twice"),
        ("val_0.png n01", "line 2: expected a file name, a tab and a class id"),
    ],
)
def test_tiny_imagenet_names_the_bad_annotation(tiny, line, message):
    file = tiny / "val" / "val_annotations.txt"
    rows = file.read_text().splitlines()
    file.write_text("\n".join([rows[0], line, rows[2]]))
    refused("tiny-imagenet", message, data_dir=tiny)


def test_folder_with_train_and_test(tmp_path):
    flat_image(tmp_path / "train" / "b" / "2.png", 4)
    flat_image(tmp_path / "train" / "b" / "10.png", 3)
    flat_image(tmp_path / "train" / "a" / "x.png", 1)
    flat_image(tmp_path / "test" / "b" / "x.png", 9)
    (tmp_path / "train" / "a" / "notes.txt").write_text("not an image")
    (tmp_path / "train" / ".cache").mkdir()
    dataset = load_dataset("folder", SourceOptions(tmp_path))
    assert dataset.class_names == ("a", "b")
    assert first_pixels(dataset) == [1, 3, 4, 9]
    assert dataset.samples.labels.tolist() == [0, 1, 1, 1]
    assert dataset.image_shape == (3, 5, 5)


def test_folder_of_class_folders_alone_is_grey_where_its_files_are(tmp_path):
    flat_image(tmp_path / "a" / "x.png", 1, mode="L")
    flat_image(tmp_path / "b" / "x.PNG", 2, mode="L")
    dataset = load_dataset("folder", SourceOptions(tmp_path))
    assert dataset.image_shape == (1, 5, 5)
    assert first_pixels(dataset) == [1, 2]
    flat_image(tmp_path / "b" / "y.png", 3)
    assert load_dataset("folder", SourceOptions(tmp_path)).image_shape == (3, 5, 5)


def test_mixed_sizes_are_refused_or_brought_to_one_size(tmp_path):
    flat_image(tmp_path / "a" / "1.png", 1)
    flat_image(tmp_path / "a" / "2.png", 2, size=(9, 4))
    message = refused("folder", "2.png is 9x4 pixels but .*1.png is 5x5; image_size", data_dir=tmp_path)
    assert str(tmp_path) in message
    dataset = load_dataset("folder", SourceOptions(tmp_path, image_size=6))
    assert dataset.image_shape == (3, 6, 6)
    assert first_pixels(dataset) == [1, 2]


@pytest.mark.parametrize("broken", [b"", b"no image at all", None], ids=["empty", "text", "truncated"])
@pytest.mark.parametrize("name", ["1.png", "2.png"], ids=["first", "later"])
def test_broken_image_is_named(tmp_path, broken, name):
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    (tmp_path / "a").mkdir()
    for file in ("1.png", "2.png"):
        Image.fromarray(noise).save(tmp_path / "a" / file)
    target = tmp_path / "a" / name
    target.write_bytes(target.read_bytes()[:800] if broken is None else broken)
    assert str(target) in refused("folder", "cannot read image", data_dir=tmp_path)


def test_folder_layouts_that_are_refused(tmp_path):
    refused("folder", "no folders in .*: expected train/", data_dir=tmp_path)
    flat_image(tmp_path / "train" / "a" / "1.png", 1)
    refused("folder", "has train/ but no test/", data_dir=tmp_path)
    (tmp_path / "test").mkdir()
    flat_image(tmp_path / "test" / "c" / "1.png", 1)
    refused("folder", "c is a class that .*train does not have", data_dir=tmp_path)
    (tmp_path / "train" / "c").mkdir()
    refused("folder", "no images in .*c: expected files", data_dir=tmp_path)


def png(path, width, height):
    """Write a PNG that says it is so large, and holds nothing."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(b"")), (b"IEND", b""))
    written = (len(d).to_bytes(4, "big") + k + d + zlib.crc32(k + d).to_bytes(4, "big") for k, d in chunks)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(written))


@pytest.mark.parametrize("side", [9_000, 12_000, 20_000, 2_000_000_000])
def test_an_image_that_is_too_large_is_refused_by_its_header(tmp_path, side, recwarn):
    (tmp_path / "a").mkdir()
    png(tmp_path / "a" / "bomb.png", side, side)
    tracemalloc.start()
    try:
        message = refused("folder", "may have 64,000,000, make it smaller", data_dir=tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()
    assert message.startswith(f"cannot read image {tmp_path / 'a' / 'bomb.png'}")
    assert not recwarn.list


def test_no_decoder_runs_that_images_of_these_suffixes_do_not_need(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    )
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *given: pytest.fail("PostScript was run"))
    refused("folder", "cannot read image .*1.png: it is none of", data_dir=tmp_path)


def test_what_is_no_file_among_the_images_is_said(tmp_path):
    flat_image(tmp_path / "a" / "1.png", 1)
    os.mkfifo(tmp_path / "a" / "2.png")
    refused("folder", "2.png: is no regular file but a pipe", data_dir=tmp_path)
    (tmp_path / "a" / "2.png").unlink()
    (tmp_path / "a" / "2.png").symlink_to("/dev/zero")
    refused("folder", "2.png: is no regular file but a pipe", data_dir=tmp_path)
    (tmp_path / "a" / "2.png").unlink()
    with (tmp_path / "a" / "2.bmp").open("wb") as file:
        file.truncate(1 << 40)
    refused("folder", "2.bmp: 1,099,511,627,776 bytes; an image may have", data_dir=tmp_path)


def test_more_images_than_memory_holds_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    for number in range(4):
        flat_image(tmp_path / "a" / f"{number}.png", number)
    monkeypatch.setattr("fedpriv.util.compute.free_memory", lambda: 150)
    refused(
        "folder",
        "4 images of 5x5 pixels would take 300 B of memory.*; 2 such images fit: take fewer",
        data_dir=tmp_path,
    )


def test_lists_of_tiny_imagenet_are_text_of_a_bounded_size(tiny):
    (tiny / "words.txt").write_bytes(b"n01\t\xff\n")
    refused("tiny-imagenet", "words.txt: not UTF-8 at byte 4", data_dir=tiny)
    with (tiny / "words.txt").open("wb") as file:
        file.truncate(1 << 40)
    refused("tiny-imagenet", "words.txt: 1,099,511,627,776 bytes; a list in text may have", data_dir=tiny)
    (tiny / "words.txt").write_text("n01\tcrane\n")
    (tiny / "val" / "val_annotations.txt").write_text("../../train/n01/images/n01_0.png\tn01\n")
    refused("tiny-imagenet", "n01_0.png is not there", data_dir=tiny)


def test_packed_files_of_torchvision_have_a_bounded_size(tmp_path):
    (tmp_path / "MNIST" / "raw").mkdir(parents=True)
    (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").symlink_to("/dev/zero")
    refused("mnist", "train-images-idx3-ubyte: is no regular file", data_dir=tmp_path)
