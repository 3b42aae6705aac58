"""The local-work sweep: the same attacks on uploads that the same clients compute after more and more local work.

An update of one step on one image may hold that image and nothing else, but nobody trains so. Each setting has a run of its
own, of one round from the same seed: the same division, clients, first weights and broadcast.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedpriv.pipeline.plan import AttackPlan, LocalWork
from fedpriv.uploads.kinds import payload_kind
from fedpriv.util.config import mapping
from fedpriv.util.errors import UserError, shown

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Attack
    from fedpriv.federation.run_directory import RunConfig

EPOCH, NONE = "epoch", "none"
FIRST_LOOK, WHOLE = ("1", EPOCH), ("1", "4", "16", EPOCH)

NOT_FAR = {"linear-layer": 1, "dlg": 4}
"""Images of one step at most at which a suite of which none is named runs some attacks. Beyond, they search for a network an
image, or by L-BFGS, which at its share of the budget takes minutes and stays below a guess."""

GIVING = {"linear-layer": 3}
"""Attacks by a network an image leave time to the other settings: what their budgets are divided by besides."""

BEYOND = 128
"""What the budget of a search for batches is divided by at several steps, which are unrolled."""

AT_MOST = 4
"""What that of attacks on classes is divided by at most: of many images there are few classes."""

OWN_WORK = ("batch_size", "epochs", "drop_last", "local_steps")
"""Settings of local work: who gives one without a sweep asks for that one alone."""


def parse_reach(given: object) -> tuple[LocalWork, ...]:
    """Return the settings that a text or a list names, from the least local work to the most; none for ``none``.

    >>> [setting.label for setting in parse_reach("epoch,4,1")]
    ['1 image', '4 images', 'epoch']
    """
    where, parts = f"reach={shown(given)}", given.split(",") if isinstance(given, str) else given
    names = [str(part).strip() for part in (parts if isinstance(parts, Iterable) else [parts])]
    if names == [NONE]:
        return ()
    for name in names or [""]:
        if name != EPOCH and not (name.isascii() and name.isdecimal() and name[0] != "0" and len(name) <= 4):
            expected = "expected numbers of images of one step and epoch, such as 1,4,16,epoch; or none alone"
            raise UserError(f"{where}: {name!r} is no setting; {expected}")
    if len(set(names)) < len(names):
        raise UserError(f"{where}: a setting is named twice")
    numbers = sorted(int(name) for name in names if name != EPOCH)
    return (*map(LocalWork, numbers), *([LocalWork()] if EPOCH in names else []))


def read_reach(target: str, settings: Mapping[str, Any], *, on_run: bool) -> tuple[LocalWork, ...]:
    """Return the settings that a verb's arguments ask for, or none where one upload is attacked as it is.

    By default :data:`FIRST_LOOK`, with ``full`` :data:`WHOLE`, for uploads of trained weights, where a run of one round is
    trained first and nothing is said of its local work.
    """
    excluded = _excluding(target, settings, on_run=on_run)
    work = [name for name in OWN_WORK if settings.get(name) is not None]
    given = settings.get("reach")
    if given is None:
        return () if excluded or work else parse_reach(WHOLE if settings.get("full") else FIRST_LOOK)
    series = parse_reach(given)
    if not series:
        return ()
    where = f"reach={shown(given)}"
    if excluded:
        raise UserError(f"{where}: {excluded}")
    for name in work:
        if name == "local_steps" or series[-1].images is not None:
            raise UserError(f"{where} and {name} exclude each other: {name} is that of an epoch alone")
    return series


def _excluding(target: str, settings: Mapping[str, Any], *, on_run: bool) -> str:
    """Return why there can be no sweep; empty where there can."""
    if on_run:
        return "the run is trained already, by the local work that it was trained by; drop run"
    if payload_kind(target).computed_from != "training":
        return f"applies to uploads of trained weights, and {target} is none"
    if settings.get("rounds", 1) != 1:
        return "compares uploads that follow the same broadcast, those of the first round; drop rounds"
    return "reach and round exclude each other" if settings.get("round") else ""


def sweep(
    config: RunConfig,
    plan: AttackPlan,
    series: Sequence[LocalWork],
    named: Collection[str],
    settings: Mapping[str, Any],
) -> tuple[tuple[RunConfig, ...], tuple[AttackPlan, ...]]:
    """Return the configurations of the runs that are trained first, and a plan for each, by local work ascending.

    ``named`` are attacks that are run at every setting.
    """
    if not series:
        return (config,), (plan,)
    from fedpriv.federation.method import LocalTraining

    epochs = settings.get("epochs") or LocalTraining().epochs
    size = settings.get("batch_size") or LocalTraining().batch_size
    works = [work if work.images else replace(work, epochs=epochs) for work in series]
    runs = []
    for work in works:
        steps = 1 if work.images else None
        training = replace(config.training, batch_size=work.images or size, max_steps=steps, epochs=work.epochs)
        runs.append(replace(config, training=training))
    return tuple(runs), sweep_plans(plan, works, named, settings)


def sweep_plans(
    plan: AttackPlan, series: Sequence[LocalWork], named: Collection[str], settings: Mapping[str, Any]
) -> tuple[AttackPlan, ...]:
    """Return a plan for each setting, from the least local work to the most.

    Unless somebody named its budget, an attack has as much of it as takes about as long at every setting (:func:`divisor`).
    What asks who was trained on does so at the first and at the last setting. What asks about a client as a whole, of whom a
    step shows little, does so at the last alone, unless it was named.
    """

    def runs(name: str, position: int, work: LocalWork) -> bool:
        near = name not in NOT_FAR or (work.images is not None and work.images <= NOT_FAR[name])
        return position == 0 or name in named or near

    def asks(name: str, number: int) -> bool:
        first = number == 0 and (plan.inferences[name].asks == "images" or name in named)
        return number == len(series) - 1 or first

    return tuple(
        replace(
            plan,
            attacks={
                name: _shared(made, work, settings, alone=len(series) == 1)
                for name, made in plan.attacks.items()
                if runs(name, index, work)
            },
            inferences={name: made for name, made in plan.inferences.items() if asks(name, index)},
            reach=work,
            series=tuple(series),
        )
        for index, work in enumerate(series)
    )


def _shared(made: Attack, work: LocalWork, settings: Mapping[str, Any], *, alone: bool) -> Attack:
    """Return an attack with its share of the budget at a setting; as it is where it has none or somebody named it."""
    given = mapping("attack_option", settings.get("attack_option", ()))
    current = given.get(made.name)
    named = made.budget in given or (isinstance(current, dict) and made.budget in current)
    if made.budget is None or named or settings.get("iterations") is not None:
        return made
    part = divisor(work, classes=made.unit == "class") * (1 if alone else GIVING.get(made.name, 1))
    return replace(made, **{made.budget: max(1, int(getattr(made, made.budget)) // part)})


def divisor(work: LocalWork, *, classes: bool = False) -> int:
    """Return the divisor of an attack's budget at a setting: an iteration costs as much as there are images.

    >>> [divisor(LocalWork(images)) for images in (1, 4, 16)], divisor(LocalWork(), classes=True)
    ([1, 4, 16], 4)
    """
    return min(BEYOND if work.images is None else work.images, AT_MOST if classes else BEYOND)
