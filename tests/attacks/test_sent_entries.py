"""Attacks on pruned updates and on signs: what was not sent is left out, and then the images come back."""

from dataclasses import replace

import torch
from compare import expect_close, expect_same
from gradient_cases import clients, images_and_labels, knowledge_of, psnr, sigmoid_net

from fedpriv.attacks.gradients.dlg import DeepLeakage
from fedpriv.attacks.gradients.update import sent_entries
from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.defenses.entries import pruned, truncated
from fedpriv.uploads.payloads import Model

COUNT = 4


def attacked(attack, change, number=COUNT):
    """PSNR of each image after an attack on updates that a defense changed; last: were another client's sent instead."""
    images, labels = images_and_labels(number)
    model = sigmoid_net()
    seen = []
    for one in clients(model, images, labels):
        before, after = one.broadcast[0].state, one.upload[0].state
        changed = {name: before[name] + change(after[name] - before[name]) for name in before}
        seen.append(replace(one, upload=(Model(changed),)))
    found = attack(tuple(seen), knowledge_of(model, labels), list_targets(seen, "model"))
    return psnr(found.images[:, 0], images), psnr(found.images[:, 0].roll(1, 0), images)


def test_dlg_gets_pruned_images_back_only_if_it_leaves_out_what_was_not_sent():
    fooled, _ = attacked(DeepLeakage(outer_steps=15, redraws=1), lambda update: pruned(update, 0.1))
    adapted, shuffled = attacked(DeepLeakage(outer_steps=20, match="sent"), lambda update: pruned(update, 0.1))
    assert fooled.median() < 15
    assert adapted.median() > 30
    assert shuffled.median() < 15


def test_dlg_gets_truncated_images_back_only_if_it_knows_what_was_truncated():
    """NVFlare's usual percentile, and its usual bound, which two thirds of the entries of this update exceed."""

    def thin(update):
        return truncated(update, 0.002, 0.01)

    fooled, _ = attacked(DeepLeakage(outer_steps=5, redraws=0), thin, 2)
    sent, _ = attacked(DeepLeakage(outer_steps=5, redraws=0, match="sent"), thin, 2)
    adapted, shuffled = attacked(DeepLeakage(outer_steps=20, match="censored"), thin, 2)
    assert max(fooled.median(), sent.median()) < 15
    assert adapted.median() > 30
    assert shuffled.median() < 15


def test_a_censored_update_is_matched_where_it_says_something():
    wanted = {"w": torch.tensor([4.0, -4.0, 0.0, 0.0, 1.5]), "b": torch.tensor([1.0, -4.0])}
    projection = sent_entries(wanted, "censored")
    assert projection.limits.tolist() == [[1.0, 4.0]]
    candidate = {"w": torch.tensor([[9.0, 2.0, 0.5, -3.0, 7.0]]), "b": torch.tensor([[-6.0, -5.0]])}
    found = projection(candidate)
    assert found["w"].tolist() == [[4.0, 2.0, 0.0, -2.0, 7.0]]
    assert found["b"].tolist() == [[-6.0, -4.0]]


def test_the_gradient_behind_a_censored_update_fits_it_exactly():
    clean = {"w": torch.randn(40, 5, generator=torch.Generator().manual_seed(1)), "b": torch.randn(3)}
    wanted = {name: truncated(value, 0.3, 1.2) for name, value in clean.items()}
    found = sent_entries(wanted, "censored")({name: value[None] for name, value in clean.items()})
    for name, value in wanted.items():
        expect_same(found[name][0], value)
    nothing = {"w": torch.zeros(3)}
    assert sent_entries(nothing, "censored")({"w": torch.ones(1, 3)})["w"].tolist() == [[1.0, 1.0, 1.0]]


def test_the_projection_by_hand():
    wanted = {"w": torch.tensor([[2.0, 0.0, -2.0]]), "b": torch.tensor([0.0])}
    candidate = {"w": torch.tensor([[[3.0, 5.0, 4.0]]]), "b": torch.tensor([[7.0]])}
    assert sent_entries(wanted, "all") is None
    sent = sent_entries(wanted, "sent")(candidate)
    assert sent["w"].tolist() == [[[3.0, 0.0, 4.0]]]
    assert sent["b"].tolist() == [[0.0]]
    signs = sent_entries(wanted, "signs")(candidate)
    expect_close(signs["w"], torch.tensor([[[2.0, 0.0, 2.0]]]), atol=1e-2)
    assert signs["b"].tolist() == [[0.0]]
