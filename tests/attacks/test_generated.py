"""A generator that the user hands over: what it can draw comes back, and what is no generator gives one line."""

import pytest
import torch
from compare import expect_same
from generator_cases import CODE, NETWORK, SHAPE, tiny
from torch import nn

from fedpriv.attacks.inputs.targets import list_targets
from fedpriv.attacks.inversion.vector import GeneratorInversion
from fedpriv.attacks.observation import Knowledge, KnowledgeCard, Observation
from fedpriv.attacks.priors.generator import load_generator
from fedpriv.util.code import VARIABLE
from fedpriv.util.errors import UserError
from fedpriv.util.seeds import generator
from fedpriv.wire.payloads import Representations

CPU = torch.device("cpu")
ATTACK = GeneratorInversion(source="generator_cases:NETWORK", code=CODE, restarts=3)


@pytest.fixture(autouse=True)
def _allowed(monkeypatch, tmp_path):
    scripts = [str(tmp_path / f"{name}.pt") for name in ("tiny", "text", "nan")]
    monkeypatch.setenv(VARIABLE, ",".join(("generator_cases", "nowhere.at", "/no/such/file.pt", *scripts)))


@pytest.fixture(scope="module")
def extractor():
    matrix = torch.randn(64, 128, generator=generator(0, "extractor")) / 8
    return lambda images: torch.relu((images.flatten(1) - 0.3) @ matrix)


@pytest.fixture(scope="module")
def drawn():
    with torch.no_grad():
        return tiny()(torch.randn(3, CODE, generator=generator(0, "codes")))


def invert(attack, extractor, vectors):
    seen = (Observation(1, 0, (Representations(vectors, torch.zeros(len(vectors), dtype=torch.long)),), ()),)
    known = Knowledge(KnowledgeCard(), SHAPE, 10, extractors={0: extractor})
    return attack(seen, known, list_targets(seen, "representation"), seed=0, device=CPU)


def psnr(found, images):
    return -10 * (found[:, 0] - images).square().flatten(1).mean(1).log10()


def test_images_that_it_can_draw_come_back(extractor, drawn):
    found = invert(ATTACK, extractor, extractor(drawn))
    assert (psnr(found.images, drawn) > 30).all()
    assert found.converged.all()


def test_other_peoples_uploads_give_nothing_away(extractor, drawn):
    found = invert(ATTACK, extractor, extractor(drawn.roll(1, 0)))
    floor = psnr(drawn.mean(0, keepdim=True).expand_as(drawn)[:, None], drawn)
    assert psnr(found.images, drawn).mean() < floor.mean()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_network_a_function_and_a_file_are_the_same_generator(tmp_path):
    path = tmp_path / "tiny.pt"
    torch.jit.trace(tiny(), torch.zeros(2, CODE)).save(str(path))
    codes = torch.randn(5, CODE)
    for source in ("generator_cases:NETWORK", "generator_cases:tiny", str(path)):
        expect_same(load_generator(source, CODE, SHAPE, CPU)(codes), NETWORK(codes).detach())


def test_the_users_own_network_is_left_alone(extractor, drawn):
    before = [value.clone() for value in NETWORK.parameters()]
    assert NETWORK.training
    invert(ATTACK, extractor, extractor(drawn[:1]))
    for old, new in zip(before, NETWORK.parameters(), strict=True):
        expect_same(old, new)
        assert new.requires_grad
    assert NETWORK.training


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        ("", CODE, "needs source=FILE"),
        ("generator_cases:missing", CODE, "has no 'missing'"),
        ("nowhere.at:all", CODE, "cannot be imported"),
        ("generator_cases:NUMBER", CODE, "expected a torch.nn.Module"),
        ("generator_cases:broken", CODE, "cannot be made: RuntimeError: no weights here"),
        ("generator_cases:tiny", 7, "does not take codes of 7 numbers"),
        ("/no/such/file.pt", CODE, "no such file"),
    ],
)
def test_bad_generators_give_one_line(extractor, drawn, source, code, told):
    with pytest.raises(UserError, match=told) as refused:
        invert(GeneratorInversion(source=source, code=code), extractor, extractor(drawn))
    assert "\n" not in str(refused.value)


def test_files_that_are_no_network_and_images_of_another_size_are_refused(tmp_path):
    path = tmp_path / "text.pt"
    path.write_text("weights")
    with pytest.raises(UserError, match="is no TorchScript file"):
        load_generator(str(path), CODE, SHAPE, CPU)
    with pytest.raises(UserError, match=r"gives \(2, 1, 8, 8\) for 2 codes; expected images of shape \(2, 3, 8, 8\)"):
        load_generator("generator_cases:tiny", CODE, (3, 8, 8), CPU)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_not_finite_is_refused(tmp_path):
    path = tmp_path / "nan.pt"
    network = tiny()
    nn.init.constant_(network[2].bias, float("nan"))
    torch.jit.trace(network, torch.zeros(2, CODE), check_trace=False).save(str(path))
    with pytest.raises(UserError, match="not finite"):
        load_generator(str(path), CODE, SHAPE, CPU)
