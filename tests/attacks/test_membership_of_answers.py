"""Members from kernels over public images, and the null of other clients that answers to public inputs are held against."""

import numpy as np
import pytest
import torch
from compare import expect_close
from torch.nn.functional import cosine_similarity

from fedpriv.algebra.matrices import linear_kernel
from fedpriv.attacks.inference.base import Candidates, InferenceProblem, Moment
from fedpriv.attacks.inference.membership import FLOOR, WIDTH, MembershipInference, calibrate_by_spread, kernel_signals
from fedpriv.attacks.inputs.outputs import extrapolation_weights
from fedpriv.attacks.observation import Knowledge, Observation, ThreatModel
from fedpriv.eval.inference_case import area
from fedpriv.sources.source import shuffle
from fedpriv.uploads.payloads import Kernel, PublicImages
from fedpriv.util.seeds import generator

C, SIDE, CLIENTS, EACH = 3, 6, 6, 20


def knowing(images=None, labels=None):
    card = ThreatModel(extractor="none", attacker_data="none" if images is None else "same_domain")
    return Knowledge(card, (1, SIDE, SIDE), C, public_images=images, public_labels=labels)


def kernel_world(*, tell=True, seed=0):
    """Clients that pull public images near to their own members towards their class, or some others; one per member."""
    rng = generator(seed, "kernel world")
    held = torch.rand(CLIENTS, EACH, 1, SIDE, SIDE, generator=rng)
    labels = torch.arange(CLIENTS * EACH).view(CLIENTS, EACH) % C
    public = (held.flatten(0, 1) + 0.02 * torch.randn(CLIENTS * EACH, 1, SIDE, SIDE, generator=rng)).clamp(0, 1)
    owner = torch.arange(CLIENTS).repeat_interleave(EACH)
    observations, candidates, member = [], {}, {}
    for client in range(CLIENTS):
        pulled = owner == client if tell else torch.rand(len(owner), generator=rng) < 1 / CLIENTS
        noise = torch.randn(len(owner), 8, generator=rng) * torch.where(pulled, 0.3, 1.0)[:, None]
        turned = torch.linalg.qr(torch.randn(8, 8, generator=rng)).Q
        features = (noise + torch.eye(8)[labels.flatten()]) @ turned
        observations.append(Observation(1, client, (Kernel(linear_kernel(features)),), (PublicImages(public),)))
        other = (client + 1) % CLIENTS
        asked = torch.cat([held[client], held[other]]), torch.cat([labels[client], labels[other]])
        candidates[client] = Candidates(client, *asked)
        member[client] = np.arange(2 * EACH) < EACH
    return tuple(observations), candidates, member, knowing(public, labels.flatten())


def scored(observations, candidates, knowledge, kind="kernel", earlier=()):
    return MembershipInference()(InferenceProblem(observations, knowledge, kind, candidates, earlier=earlier))


def area_of(found, member):
    return area(np.concatenate([found.values[k].numpy() for k in member]), np.concatenate(list(member.values())))


def test_positive_control_kernels_that_pull_neighbours_of_members_give_members_away():
    observations, candidates, member, knowledge = kernel_world()
    assert area_of(scored(observations, candidates, knowledge), member) > 0.8
    # By another client's upload those of the next client, the non-members here, look like members.
    assert area_of(scored(shuffle(observations), candidates, knowledge), member) < 0.5


def test_negative_control_kernels_that_pull_others_give_nobody_away():
    areas = [area_of(scored(o, c, k), m) for o, c, m, k in (kernel_world(tell=False, seed=s) for s in range(4))]
    assert 0.45 < np.mean(areas) < 0.55


def test_other_clients_are_worth_something_and_so_are_rounds():
    observations, candidates, member, knowledge = kernel_world()
    once = area_of(scored(observations, candidates, knowledge), member)
    alone = {k: scored(observations[k : k + 1], {k: candidates[k]}, knowledge).values[k] for k in range(CLIENTS)}
    assert once > area(np.concatenate([alone[k].numpy() for k in member]), np.concatenate(list(member.values())))
    elsewhere = kernel_world(tell=False)[0]
    found = scored(elsewhere, candidates, knowledge, earlier=(Moment(observations, knowledge),))
    assert area_of(scored(elsewhere, candidates, knowledge), member) < area_of(found, member) < once


def test_the_signal_is_the_cosine_of_extrapolated_features_and_the_class_whatever_way_they_are_turned():
    rng = generator(4)
    public, images = torch.rand(9, 1, SIDE, SIDE, generator=rng), torch.rand(5, 1, SIDE, SIDE, generator=rng)
    classes, labels = torch.arange(9) % C, torch.tensor([0, 1, 2, 0, 1])
    features = torch.randn(9, 7, generator=rng).double()
    seen = Observation(1, 0, (Kernel(linear_kernel(features + 3.0).float()),), (PublicImages(public),))
    rows = extrapolation_weights(public, images, WIDTH) @ (features - features.mean(0))
    means = torch.stack([features[classes == c].mean(0) - features.mean(0) for c in labels])
    found = kernel_signals([seen], images, labels, knowing(public, classes))
    expect_close(found[0], cosine_similarity(rows, means), atol=1e-5)
    # Without the classes of public images the length is left.
    length = rows.square().sum(1) / (features - features.mean(0)).square().sum(1).mean()
    expect_close(kernel_signals([seen], images, labels, knowing())[0], length, atol=1e-5)
    auxiliary = knowing(torch.rand(4, 1, SIDE, SIDE, generator=rng), torch.zeros(4).long())
    expect_close(kernel_signals([seen], images, labels, auxiliary)[0], length, atol=1e-5)


def test_differences_in_the_spread_of_others_by_hand():
    own = torch.tensor([3.0, 1.0])
    others = [torch.tensor([0.0, 1.0]), torch.tensor([1.0, 3.0]), torch.tensor([2.0, 5.0])]
    # Means 1 and 3, spreads 1 and 2, of which the median is 1.5.
    above = [2 / (1 + FLOOR * 1.5), -2 / (2 + FLOOR * 1.5)]
    # Each is alone in its class: half of what it is beyond the median of all is left.
    expected = [(one - sum(above) / 2) / 2 for one in above]
    found = calibrate_by_spread(torch.stack([own, *others]), torch.tensor([0, 1]))
    assert found.tolist() == pytest.approx(expected)
