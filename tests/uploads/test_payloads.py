import json

import numpy as np
import pytest
import torch
from compare import expect_same
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fedpriv.uploads.ledger import count, entries
from fedpriv.uploads.messages import load_message, message_bytes
from fedpriv.uploads.payload import all_finite
from fedpriv.uploads.payloads import (
    Classifier,
    Entangled,
    FeatureMean,
    Kernel,
    LabelCounts,
    Model,
    Prototypes,
    SampleCount,
)
from fedpriv.util.errors import UserError


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Prototypes(torch.randn(2, 5), torch.tensor([0, 1, 2])), "prototype.classes: axis c should be 2"),
        (lambda: Prototypes(torch.randn(5), torch.tensor([0])), "prototype.features: expected shape (c, d)"),
        (lambda: Kernel(torch.randn(3, 4)), "kernel.matrix: axis L should be 3"),
        (lambda: Entangled(torch.randn(5).double(), torch.rand(3)), "entangled.feature: expected torch.float32"),
        (lambda: LabelCounts(torch.rand(3)), "label-counts.counts: expected torch.int64"),
        (lambda: Model(torch.rand(3)), "model.state: expected tensors by name"),
        (lambda: SampleCount(torch.tensor([1, 2])), "sample-count.count: axis 1 should be 1"),
        (lambda: Prototypes([[1.0], [2.0, 3.0]], [0, 1]), "prototype.features: expected numbers"),
        (lambda: Prototypes([[1.0], ["2"]], [0, 1]), "prototype.features: expected numbers"),
        (lambda: Prototypes([[1.0], [2.0]], [0.0, 1.5]), "prototype.classes: expected whole numbers"),
        (lambda: Prototypes(np.ones((2, 3)).astype(object), [0, 1]), "prototype.features: expected numbers"),
        (lambda: Prototypes(np.ma.masked_array(np.ones((2, 3))), [0, 1]), "expected numbers, got a masked array"),
        (lambda: Model({"a": np.array(["b"])}), "model.state/a: expected numbers, got an array of .<U1"),
    ],
)
def test_a_payload_of_the_wrong_form_cannot_be_made(make, complaint):
    with pytest.raises(UserError, match=complaint.replace("(", r"\(").replace(")", r"\)")):
        make()


def test_lists_and_arrays_of_numbers_are_taken_for_tensors():
    rows, classes = [[1.0, 2.0], [3.0, 4.5]], [3, 1]
    wanted = Prototypes(torch.tensor(rows), torch.tensor(classes), torch.tensor([2, 2]))
    reversed_rows = np.array(rows)[::-1]
    for features, labels, counts in (
        (rows, classes, (2, 2)),
        (np.array(rows), np.array(classes, dtype=np.int32), [2, 2]),
        (reversed_rows[::-1], np.array(classes, dtype=">i8"), np.array([2, 2], dtype=np.uint8)),
        ([torch.tensor(row) for row in rows], classes, torch.tensor([2, 2])),
    ):
        found = Prototypes(features, labels, counts)
        for name, value in wanted.tensors().items():
            expect_same(found.tensors()[name], value)
    kept = np.ones(3, dtype=np.float32)
    model = Model({"a": kept})
    kept[:] = 0
    expect_same(model.state["a"], torch.ones(3))


def write_tampered(path, change):
    path.write_bytes(message_bytes((Prototypes(torch.randn(2, 5), torch.tensor([0, 2])),), {"round": 1}))
    blocks, header = load_file(path), {"format": "fedpriv-message-1", "kinds": ["prototype"]}
    change(blocks, header)
    save_file(blocks, path, metadata={"fedpriv": json.dumps(header)})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda blocks, header: blocks.pop("0/classes"), "'0/classes' of prototype is missing"),
        (lambda blocks, header: blocks.update({"0/extra": torch.zeros(1)}), "unexpected tensor '0/extra'"),
        (lambda blocks, header: blocks["0/features"].fill_(float("nan")), "prototype.features holds NaN"),
        (lambda blocks, header: blocks.update({"0/features": torch.zeros(3, 5)}), "axis c should be 3"),
        (lambda blocks, header: header.update({"kinds": ["wishes"]}), "unknown kind of payload 'wishes'"),
        (lambda blocks, header: header.update({"kinds": "nonsense"}), "'kinds' is missing or no list"),
        (lambda blocks, header: header.update({"format": "other-9"}), "header says format 'other-9'"),
    ],
)
def test_a_tampered_file_is_refused_by_name_and_field(change, complaint, tmp_path):
    path = tmp_path / "message.safetensors"
    write_tampered(path, change)
    with pytest.raises(UserError, match=complaint) as caught:
        load_message(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_cut_file_is_refused(tmp_path):
    path = tmp_path / "message.safetensors"
    with pytest.raises(UserError, match="no such file"):
        load_message(path)
    path.write_bytes(message_bytes((FeatureMean(torch.randn(50)),), {})[:60])
    with pytest.raises(UserError, match="not readable as safetensors"):
        load_message(path)


def test_the_ledger_counts_by_habit_and_in_full():
    # 3 prototypes of width 5 with ids and counts, and the sample count; answered a head of 5 x 2 + 2.
    upload = (
        Prototypes(torch.zeros(3, 5), torch.arange(3), torch.ones(3, dtype=torch.int64)),
        SampleCount(torch.tensor([9])),
    )
    broadcast = (Classifier({"weight": torch.zeros(2, 5), "bias": torch.zeros(2)}),)
    rows = [*entries(broadcast, 1, 0, "broadcast"), *entries(upload, 1, 0, "upload"), *entries(upload, 2, 1, "upload")]
    totals = count(rows)
    assert (totals["paper"]["upload_scalars"], totals["paper"]["broadcast_scalars"]) == (2 * 15, 12)
    assert (totals["full"]["upload_scalars"], totals["full"]["broadcast_scalars"]) == (2 * (15 + 3 + 3 + 1), 12)
    assert totals["paper"]["upload_bytes"] == 2 * 15 * 4
    assert totals["full"]["upload_bytes"] == 2 * (15 * 4 + 7 * 8)
    first, second = (count(row for row in rows if row.round == number) for number in (1, 2))
    assert first["paper"] + second["paper"] == totals["paper"]
    assert first["full"] + second["full"] == totals["full"]


NUMBERS = st.lists(st.floats(width=32) | st.sampled_from([3e38, -3e38, float("inf"), float("-inf"), float("nan")]))


@given(numbers=NUMBERS)
def test_a_sum_never_hides_what_is_not_finite_nor_makes_it_up(numbers):
    values = torch.tensor(numbers, dtype=torch.float32)
    assert all_finite(values) == bool(values.isfinite().all())
