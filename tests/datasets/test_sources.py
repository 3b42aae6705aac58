"""Loaders on small data made here, in the layouts of the originals, and on real data where it is present."""

import hashlib
import pickle
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from compare import expect_same
from image_cases import first_pixels, refused
from sklearn import datasets as sklearn_datasets

from fedpriv.datasets import DATASETS, SourceOptions, load_dataset
from fedpriv.datasets.partition import PartitionOptions, class_counts, federate


def test_importing_the_registry_does_not_import_torch():
    code = "import sys, fedpriv.datasets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image size is 0"),
        ({"per_class": 0}, "images per class is 0"),
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


FASHION_DIGEST = "6ec605e7f7f3d24837555ab9be88912386279b55272f06e5543534871f28239d"
"""SHA-256 of the pixels, then the labels, as bytes."""


def test_fashion_is_there_without_a_download():
    dataset = load_dataset("fashion")
    images, labels = dataset.samples.images, dataset.samples.labels
    assert (images.shape, images.dtype) == ((2000, 1, 28, 28), torch.uint8)
    assert torch.bincount(labels).tolist() == [214, 209, 197, 185, 210, 187, 197, 210, 197, 194]
    assert dataset.n_classes == 10
    found = hashlib.sha256(images.numpy().tobytes() + labels.to(torch.uint8).numpy().tobytes())
    assert found.hexdigest() == FASHION_DIGEST


def test_points_of_the_plane_are_what_the_paper_divides():
    """FedRE, figure 2: 300 training and 200 test samples at two clients, from which FedGH uploads 4 prototypes."""
    for seed in (0, 5):
        data = load_dataset("plane", SourceOptions(seed=seed))
        federated = federate(data, PartitionOptions("pathological", train_fraction=0.6), 2, seed)
        assert sum(len(one.train_index) for one in federated.clients) == 300
        assert sum(len(one.test_index) for one in federated.clients) == 200
        assert ((class_counts(federated) > 0).sum(), len(federated.clients)) == (4, 2)


def test_digits_are_scikit_learns_in_the_unit_interval():
    dataset = load_dataset("digits")
    bunch = sklearn_datasets.load_digits()
    assert dataset.samples.images.dtype == torch.float32
    assert dataset.image_shape == (1, 8, 8)
    assert dataset.n_classes == 10
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
    assert dataset.n_classes == 10


def test_truncated_idx_file_is_one_line(tmp_path):
    idx_set(tmp_path / "MNIST" / "raw")
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-100])
    refused("mnist", "incomplete or damaged", data_dir=tmp_path)


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


@pytest.mark.parametrize(("name", "n_classes", "total"), [("cifar10", 10, 12), ("cifar100", 100, 4)])
def test_cifar_is_read_in_torchvisions_layout(name, n_classes, total, tmp_path, monkeypatch):
    folder = cifar_set(tmp_path, n_classes)
    refused(name, "incomplete or damaged", data_dir=tmp_path)  # not the published files: checksums differ
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    for given in (tmp_path, folder):
        dataset = load_dataset(name, SourceOptions(given))
        assert dataset.samples.images.shape == (total, 3, 32, 32)
        assert first_pixels(dataset) == list(range(total))
        assert set(dataset.samples.images[:, 1, 0, 0].tolist()) == {7}
        assert dataset.class_names[n_classes - 1] == f"name {n_classes - 1}"
        assert dataset.samples.labels[1] == n_classes - 1
