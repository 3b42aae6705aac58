"""The independent classifier: who judges whom, shares of classes by hand, and files that hold it."""

import numpy as np
import pytest
import torch
from compare import expect_same
from eval_cases import images
from federations import CPU, small

from fedpriv.attacks.observation import TargetId
from fedpriv.datasets.types import as_unit
from fedpriv.eval import judge as judges
from fedpriv.eval.floors import NEAREST
from fedpriv.eval.intervals import Means
from fedpriv.eval.judge import (
    ClassEvaluator,
    class_accuracy,
    load_class_evaluator,
    save_class_evaluator,
    train_class_evaluator,
)
from fedpriv.sources.run import prepare
from fedpriv.sources.truth import Pool, Truth
from fedpriv.util.errors import UserError

SHAPE = (1, 8, 8)


def bright(pictures):
    """Class 1 for images above one half, else class 0."""
    return torch.stack([0.5 - pictures.mean((1, 2, 3)), pictures.mean((1, 2, 3)) - 0.5], 1)


def dark(pictures):
    return -bright(pictures)


def flat(*values):
    return torch.tensor(values)[:, None, None, None].expand(-1, *SHAPE).clone()


def a_truth(values, labels, weights=None, pool=(0.1, 0.2, 0.9, 0.3)):
    auxiliary = Pool(flat(*pool), torch.zeros(len(pool), dtype=torch.int64), flat(), torch.zeros(0, dtype=torch.int64))
    shares = torch.tensor(weights or [1 / len(values)] * len(values))
    return Truth(flat(*values), shares, torch.tensor(labels), auxiliary)


def test_shares_of_recognised_classes_by_hand():
    judge = ClassEvaluator((bright,), {0: 0, 1: 0}, (10,))
    targets = [TargetId(1, 0, 0), TargetId(1, 1, 1)]
    truths = [a_truth([0.9], [1]), a_truth([0.8, 0.7], [1, 0], weights=[0.25, 0.75])]
    guesses = {
        "attack": [flat(0.9, 0.1), flat(0.2)],  # half of the guesses; class 0 has three quarters
        "noise": [flat(0.1), flat(0.9)],  # none; class 1 has a quarter
        NEAREST: [flat(0.9), flat(0.1)],
    }
    found, gains = class_accuracy(judge, targets, truths, guesses, Means((0, 1)))
    assert found.per_target == (0.5, 0.75)
    assert (found.mean, found.n) == (0.625, 2)
    assert found.real == pytest.approx((1 + 0.25) / 2)  # of the second target the judge names class 1 both times
    # Auxiliary images: one of four is bright, so 1/4 of the first; 3/4 * 3/4 + 1/4 * 1/4 of the second.
    assert found.floors == pytest.approx({"noise": 0.125, NEAREST: (1 + 0.75) / 2, "random_image": (0.25 + 0.625) / 2})
    assert (found.chance_of, found.chance) == ("random_image", pytest.approx(0.4375))  # the nearest one is not blind
    assert found.trained_on == (10,)
    assert found.ci95[0] < 0.625 < found.ci95[1] <= 1
    assert {name: own.tolist() for name, own in gains.items()} == {
        "noise": [0.5, 0.5],
        "random_image": [0.25, pytest.approx(0.125)],
    }


@pytest.fixture(scope="module")
def trained():
    federation = prepare(small("fedgh", clients=3, per_class=60), CPU)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(judges, "_STEPS", 60)
        patched.setattr(judges, "MOST_IMAGES", 150)
        return federation, train_class_evaluator(federation, [2, 0, 1, 0], 5)


def test_judges_learn_classes_from_images_that_their_clients_do_not_hold(trained):
    federation, judge = trained
    assert sorted(judge.half) == [0, 1, 2]
    assert sorted(judge.half.values()) == [0, 0, 1]
    samples = federation.data.dataset.samples
    for number, size in enumerate(judge.trained_on):
        mine = [client for client, half in judge.half.items() if half == number]
        seen = np.concatenate([federation.data.clients[client].train_index for client in mine])
        assert size == min(150, len(samples) - len(seen))
        right = judge.classes(mine[0], as_unit(samples.images[seen])) == samples.labels[seen]
        assert right.float().mean() > 0.6  # 0.1 by chance
    assert not any(model.training for model in judge.models)
    assert not any(part.requires_grad for model in judge.models for part in model.parameters())


def test_judges_are_read_back_as_they_were_written(trained, tmp_path):
    _, judge = trained
    assert load_class_evaluator(tmp_path / "judge.safetensors", SHAPE) is None
    save_class_evaluator(tmp_path / "judge.safetensors", judge)
    assert [path.name for path in tmp_path.iterdir()] == ["judge.safetensors"]
    again = load_class_evaluator(tmp_path / "judge.safetensors", SHAPE)
    assert (again.half, again.trained_on) == (judge.half, judge.trained_on)
    pictures = images(5)
    for one, other in zip(judge.models, again.models, strict=True):
        expect_same(one(pictures), other(pictures))
        assert not other.training
        assert not any(part.requires_grad for part in other.parameters())


def test_what_is_no_judge_of_these_images_is_refused(trained, tmp_path):
    save_class_evaluator(tmp_path / "judge.safetensors", trained[1])
    with pytest.raises(
        UserError, match=r"judge\.safetensors: not a judge of images \(3, 8, 8\) \(.*size mismatch|Error"
    ):
        load_class_evaluator(tmp_path / "judge.safetensors", (3, 8, 8))
    (tmp_path / "judge.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match=r"judge\.safetensors: not readable as safetensors"):
        load_class_evaluator(tmp_path / "judge.safetensors", SHAPE)
