"""Transformed images set right: by the attacker's own images, black borders and the policy, and no further."""

from dataclasses import replace

import pytest
import torch
from gradient_cases import clients, knowledge_of, sigmoid_net

from fedpriv.attacks.gradients.adapted import TransformationSearch, uncropped
from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.observation import TargetId, ThreatModel
from fedpriv.defenses.training import cropped, transform
from fedpriv.util.errors import UserError

SIDE = 8


def pictures(number, seed):
    """Images that resemble each other: a bright bar on dark ground in the left half, each a little different."""
    rng = torch.Generator().manual_seed(seed)
    images = 0.05 * torch.rand(number, 1, SIDE, SIDE, generator=rng)
    images[:, :, 2:6, 1:4] += 0.6 + 0.1 * torch.rand(number, 1, 4, 3, generator=rng)
    return images


def psnr(guess, truth):
    return float(-10 * (guess - truth).square().mean().clamp_min(1e-10).log10())


@pytest.mark.parametrize("policy", ["7", "15", "1-7", "7+15"])
def test_pictures_are_set_right_up_to_what_was_cut_off(policy):
    own, attack = pictures(40, 1), TransformationSearch(policy=policy)
    before, after = [], []
    for seed, image in enumerate(pictures(8, 2)):
        policies = tuple(tuple(map(int, part.split("-"))) for part in policy.split("+"))
        changed = transform(image, policies, torch.Generator().manual_seed(seed), crop=True)
        before.append(psnr(changed, image))
        after.append(psnr(attack.untransformed(changed, own), image))
    assert sum(after) / 8 > sum(before) / 8 + 6
    assert sum(after) / 8 > 22


def test_noise_becomes_no_picture_of_the_clients():
    own, truth = pictures(40, 1), pictures(1, 2)[0]
    noise = torch.rand(1, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    assert psnr(TransformationSearch(policy="7").untransformed(noise, own), truth) < psnr(own.mean(0), truth)


def test_the_crop_that_was_made_is_among_those_undone():
    image = pictures(1, 5)[0]
    for seed in range(6):
        changed = cropped(image, torch.Generator().manual_seed(seed))
        images, known, left = uncropped(changed, torch.ones(SIDE, SIDE, dtype=torch.bool), 0.0)
        right = ((images - image) * known[:, None]).abs().flatten(1).amax(1) < 1e-6
        assert bool((right & (left < 1e-6)).any())


def test_an_update_of_a_transformed_image_leads_to_the_image():
    model, image, labels = sigmoid_net(), pictures(1, 7), torch.tensor([3])
    changed = transform(image[0], ((7,),), torch.Generator().manual_seed(1), crop=True)[None]
    seen = clients(model, changed, labels)
    card, own = ThreatModel(attacker_data="same_domain"), {"public_images": pictures(40, 1)}
    knowledge = replace(knowledge_of(model, labels), card=card, **own, public_labels=labels.repeat(40))
    attack = TransformationSearch(policy="7", search="dlg", iterations=600)
    found = attack(seen, knowledge, (TargetId(0, 0),))
    alone = DeepLeakage(outer_steps=30)(seen, knowledge, (TargetId(0, 0),))
    assert psnr(found.images[0, 0], image[0]) > psnr(alone.images[0, 0], image[0]) + 3


def test_bad_policies_are_refused():
    with pytest.raises(UserError, match="attack 'untransform': policy"):
        TransformationSearch(policy="99")
