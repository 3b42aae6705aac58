"""Loaders on small data made here, in the layouts of the originals, and on real data where it is present."""

import gzip
import hashlib
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from compare import expect_close, expect_same
from image_cases import first_pixels, refused
from sklearn import datasets as sklearn_datasets

from fedpriv.datasets import DATASETS, SourceOptions, load_dataset
from fedpriv.datasets.federated import PartitionOptions, federate
from fedpriv.datasets.holdings import class_counts

# ---------------------------------------------------------------------------------------------- registry and options


def test_every_registered_name_resolves_to_a_loader():
    assert all(callable(DATASETS.load(name)) for name in DATASETS)


def test_importing_the_registry_does_not_import_torch():
    code = "import sys, fedpriv.datasets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_name_is_answered_with_the_known_ones():
    refused("cifar11", "did you mean 'cifar10'")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image size is 0"),
        ({"per_class": 0}, "images per class is 0"),
        ({"channels": 2}, "number of channels is 2"),
    ],
)
def test_impossible_options_are_refused(options, message):
    refused("digits", message, **options)


@pytest.mark.parametrize("name", sorted(set(DATASETS) - {"digits", "fashion", "plane"}))
def test_a_source_on_disk_needs_a_folder_that_is_there(name, tmp_path):
    refused(name, "needs data_dir")
    message = refused(name, "not found: looked for", data_dir=tmp_path / "nowhere")
    assert str(tmp_path / "nowhere") in message
    assert "download" in message


# ------------------------------------------------------------------------------------------------------------- fashion

FASHION_DIGEST = "6ec605e7f7f3d24837555ab9be88912386279b55272f06e5543534871f28239d"
"""SHA-256 of the pixels, then the labels, as bytes."""


def test_fashion_is_there_without_a_download():
    dataset = load_dataset("fashion")
    images, labels = dataset.samples.images, dataset.samples.labels
    assert (images.shape, images.dtype) == ((2000, 1, 28, 28), torch.uint8)
    assert torch.bincount(labels).tolist() == [214, 209, 197, 185, 210, 187, 197, 210, 197, 194]
    assert (dataset.n_official_train, dataset.n_classes) == (1000, 10)
    found = hashlib.sha256(images.numpy().tobytes() + labels.to(torch.uint8).numpy().tobytes())
    assert found.hexdigest() == FASHION_DIGEST


def test_fashion_is_a_part_of_fashion_mnist():
    ours, theirs = load_dataset("fashion"), load_dataset("fashion-mnist", SourceOptions(real("FashionMNIST/raw")))
    expect_same(ours.samples.images, theirs.samples.images)
    assert torch.equal(ours.samples.labels, theirs.samples.labels)
    assert ours.class_names == theirs.class_names


def test_a_wheel_holds_the_images_and_their_licence(tmp_path):
    pytest.importorskip("hatchling", reason="the builder of wheels is not installed")
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        pytest.skip("these are installed tests, without the source to build from")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        held = "fedpriv/datasets/embedded/"
        assert wheel.read(held + "fashion.npz") == (root / held / "fashion.npz").read_bytes()
        assert b"Copyright (c) 2017 Zalando SE" in wheel.read(held + "LICENSE-fashion-mnist.txt")


# --------------------------------------------------------------------------------------------------------------- plane


def test_points_of_the_plane_are_what_the_paper_divides():
    """FedRE, figure 2: 300 training and 200 test samples at two clients, from which FedGH uploads 4 prototypes."""
    for seed in (0, 5):
        data = load_dataset("plane", SourceOptions(seed=seed))
        federated = federate(data, PartitionOptions("pathological", train_fraction=0.6), 2, seed)
        assert sum(len(one.train_index) for one in federated.clients) == 300
        assert sum(len(one.test_index) for one in federated.clients) == 200
        assert ((class_counts(federated) > 0).sum(), len(federated.clients)) == (4, 2)


def test_points_of_the_plane_overlap_as_they_say():
    drawn = [load_dataset("plane", SourceOptions(seed=seed)).samples for seed in range(40)]
    points = torch.cat([one.images.flatten(1) for one in drawn]) * 9 - 4.5
    labels = torch.cat([one.labels for one in drawn])
    corners = torch.tensor([[0.4, 0.4], [-0.4, 0.4], [-0.4, -0.4], [0.4, -0.4]])
    means = torch.stack([points[labels == label].mean(0) for label in range(4)])
    assert (means - corners).abs().max() < 0.05  # 5,000 points each: 0.014 is one standard error
    assert (points - corners[labels]).std(0).sub(1).abs().max() < 0.03
    right = ((points[:, 0] > 0) == (corners[labels, 0] > 0)).float().mean()
    assert abs(float(right) - 0.6554) < 0.02
    assert (points.abs() == 4.5).float().mean() < 1e-4


def test_points_are_drawn_from_the_seed():
    one, again, other = (load_dataset("plane", SourceOptions(seed=seed)).samples.images for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


# -------------------------------------------------------------------------------------------------------------- digits


def test_digits_are_scikit_learns_in_the_unit_interval():
    dataset = load_dataset("digits")
    bunch = sklearn_datasets.load_digits()
    assert dataset.samples.images.dtype == torch.float32
    assert dataset.image_shape == (1, 8, 8)
    assert dataset.n_classes == 10
    assert dataset.n_official_train == 1797
    assert np.array_equal(dataset.samples.images[:, 0].numpy() * 16, bunch.images)
    assert np.array_equal(dataset.samples.labels.numpy(), bunch.target)
    assert float(dataset.samples.images.max()) == 1.0


def test_per_class_keeps_the_first_in_stored_order():
    every = load_dataset("digits")
    few = load_dataset("digits", SourceOptions(per_class=3))
    assert np.bincount(few.samples.labels.numpy()).tolist() == [3] * 10
    labels = every.samples.labels.numpy()
    expected = sorted(np.concatenate([np.flatnonzero(labels == label)[:3] for label in range(10)]).tolist())
    expect_same(few.samples.images, every.samples.images[expected])
    assert few.n_official_train == 30


def test_channels_and_size_apply_to_every_source():
    plain = load_dataset("digits", SourceOptions(per_class=2)).samples.images
    colour = load_dataset("digits", SourceOptions(per_class=2, channels=3, image_size=16)).samples.images
    assert colour.shape == (20, 3, 16, 16)
    expect_same(colour[:, 0], colour[:, 2])
    expect_close(colour[:, 0].mean((1, 2)), plain[:, 0].mean((1, 2)), atol=0.02)
    assert 0 <= float(colour.min()) <= float(colour.max()) <= 1


# --------------------------------------------------------------------------------------------- torchvision's data sets


def write_idx(folder, part, images, labels):
    """Write one part in the IDX format."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, *images.shape) + images.tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, len(labels)) + labels.tobytes())


def idx_set(folder, n_train=6, n_test=4):
    """Write a small IDX data set whose first pixel is the running number."""
    for part, n, offset in (("train", n_train, 0), ("t10k", n_test, n_train)):
        images = np.zeros((n, 28, 28), dtype=np.uint8)
        images[:, 0, 0] = np.arange(n) + offset
        write_idx(folder, part, images, (np.arange(n) % 3).astype(np.uint8))


@pytest.mark.parametrize(("name", "inside"), [("fashion-mnist", "FashionMNIST"), ("mnist", "MNIST")])
@pytest.mark.parametrize("depth", [0, 1, 2], ids=["root", "its folder", "raw"])
def test_idx_sets_are_found_from_each_level(name, inside, depth, tmp_path):
    idx_set(tmp_path / inside / "raw")
    given = [tmp_path, tmp_path / inside, tmp_path / inside / "raw"][depth]
    dataset = load_dataset(name, SourceOptions(given))
    assert dataset.samples.images.dtype == torch.uint8
    assert dataset.samples.images.shape == (10, 1, 28, 28)
    assert first_pixels(dataset) == list(range(10))
    assert dataset.samples.labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert (dataset.n_official_train, dataset.n_classes) == (6, 10)


def test_relative_folder_is_resolved_too(tmp_path, monkeypatch):
    idx_set(tmp_path / "MNIST" / "raw")
    monkeypatch.chdir(tmp_path / "MNIST" / "raw")
    assert len(load_dataset("mnist", SourceOptions(Path())).samples) == 10


def test_per_class_counts_over_the_merged_set(tmp_path):
    idx_set(tmp_path / "MNIST" / "raw")
    dataset = load_dataset("mnist", SourceOptions(tmp_path, per_class=3))
    assert first_pixels(dataset) == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert dataset.n_official_train == 6


def test_missing_idx_set_says_where_and_how(tmp_path):
    message = refused("fashion-mnist", "download fetches it", data_dir=tmp_path)
    assert str(tmp_path / "FashionMNIST" / "raw") in message


def test_truncated_idx_file_is_one_line(tmp_path):
    idx_set(tmp_path / "MNIST" / "raw")
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    refused("mnist", "incomplete or damaged", data_dir=tmp_path)


def test_missing_idx_file_is_one_line(tmp_path):
    idx_set(tmp_path / "MNIST" / "raw")
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    refused("mnist", "incomplete or damaged.*download", data_dir=tmp_path)


def test_labels_that_do_not_fit_the_images_are_refused(tmp_path):
    folder = tmp_path / "MNIST" / "raw"
    idx_set(folder)
    write_idx(folder, "train", np.zeros((3, 28, 28), np.uint8), np.zeros(4, np.uint8))
    refused("mnist", "3 training images but 4 labels", data_dir=tmp_path)
    write_idx(folder, "train", np.zeros((2, 28, 28), np.uint8), np.array([0, 77], np.uint8))
    refused("mnist", r"labels are not in 0\.\.9", data_dir=tmp_path)


def test_download_unpacks_archives_and_failure_is_one_line(tmp_path, monkeypatch):
    from torchvision.datasets import MNIST, mnist

    folder = tmp_path / "MNIST" / "raw"
    idx_set(folder)
    for file in sorted(folder.iterdir()):
        with gzip.open(f"{file}.gz", "wb") as packed:
            packed.write(file.read_bytes())
        file.unlink()

    def unpack(url, download_root, filename, md5):
        source = Path(download_root) / filename
        source.with_suffix("").write_bytes(gzip.decompress(source.read_bytes()))

    monkeypatch.setattr(mnist, "download_and_extract_archive", unpack)
    refused("mnist", "download", data_dir=tmp_path)
    assert len(load_dataset("mnist", SourceOptions(tmp_path, download=True)).samples) == 10

    def no_network(self):
        raise RuntimeError("Error downloading\n  <no network>")

    monkeypatch.setattr(MNIST, "download", no_network)
    refused(
        "mnist",
        "could not be downloaded into .*RuntimeError: Error downloading <no network>",
        data_dir=tmp_path / "b",
        download=True,
    )


def cifar_set(root, n_classes):
    """Write a small CIFAR set; the first pixel of every image is its running number."""
    fine = n_classes == 100
    folder = root / ("cifar-100-python" if fine else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    key = "fine_labels" if fine else "labels"
    batches = ["train", "test"] if fine else [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for position, batch in enumerate(batches):
        data = np.zeros((2, 3072), dtype=np.uint8)
        data[:, 0] = [2 * position, 2 * position + 1]
        data[:, 1024] = 7  # the first pixel's green
        (folder / batch).write_bytes(pickle.dumps({"data": data, key: [position, n_classes - 1]}))
    names = [f"name {number}" for number in range(n_classes)]
    meta = ("meta", "fine_label_names") if fine else ("batches.meta", "label_names")
    (folder / meta[0]).write_bytes(pickle.dumps({meta[1]: names}))
    return folder


@pytest.mark.parametrize(("name", "n_classes", "n_train", "total"), [("cifar10", 10, 10, 12), ("cifar100", 100, 2, 4)])
def test_cifar_is_read_in_torchvisions_layout(name, n_classes, n_train, total, tmp_path, monkeypatch):
    folder = cifar_set(tmp_path, n_classes)
    refused(name, "incomplete or damaged", data_dir=tmp_path)  # not the published files: checksums differ
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    for given in (tmp_path, folder):
        dataset = load_dataset(name, SourceOptions(given))
        assert dataset.samples.images.shape == (total, 3, 32, 32)
        assert first_pixels(dataset) == list(range(total))
        assert set(dataset.samples.images[:, 1, 0, 0].tolist()) == {7}
        assert dataset.n_official_train == n_train
        assert dataset.class_names[n_classes - 1] == f"name {n_classes - 1}"
        assert dataset.samples.labels[1] == n_classes - 1


# ----------------------------------------------------------------------------------------------------------- real data


def real(inside):
    """Return the folder of real data, or skip."""
    root = os.environ.get("FEDPRIV_TEST_DATA")
    if not root or not (Path(root) / inside).exists():
        pytest.skip(f"FEDPRIV_TEST_DATA is unset or holds no {inside}")
    return Path(root)


def test_real_fashion_mnist():
    dataset = load_dataset("fashion-mnist", SourceOptions(real("FashionMNIST/raw")))
    assert dataset.image_shape == (1, 28, 28)
    assert dataset.class_names[9] == "Ankle boot"
    # the first training image of Fashion-MNIST is an ankle boot, the second a T-shirt
    assert dataset.samples.labels[:2].tolist() == [9, 0]
    assert len(dataset.samples) > dataset.n_official_train > 0


def test_real_tiny_imagenet_validation_images_look_like_their_class():
    root = real("tiny-imagenet-200")
    dataset = load_dataset("tiny-imagenet", SourceOptions(root))
    assert dataset.image_shape == (3, 64, 64)
    labels = dataset.samples.labels.numpy()
    validation = labels[dataset.n_official_train :]
    assert len(set(np.bincount(validation, minlength=dataset.n_classes).tolist())) == 1
    # nearest class by mean 8x8 thumbnail: with labels that are wrong or shuffled the hit rate is that of chance
    small = torch.nn.functional.avg_pool2d(dataset.samples.images.float(), 8).flatten(1)
    train, held = small[: dataset.n_official_train], small[dataset.n_official_train :]
    centres = torch.stack([train[labels[: len(train)] == label].mean(0) for label in range(dataset.n_classes)])
    hits = (torch.cdist(held, centres).argmin(1).numpy() == validation).mean()
    assert hits > 3 / dataset.n_classes


def test_real_image_folder():
    dataset = load_dataset("folder", SourceOptions(real("cifar10-jpeg") / "cifar10-jpeg", per_class=20))
    assert dataset.image_shape == (3, 32, 32)
    assert dataset.class_names[0] == "airplane"
    assert np.bincount(dataset.samples.labels.numpy()).tolist() == [20] * 10
