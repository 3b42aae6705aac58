"""The reach of a leak: the same attacks on uploads of the same clients after more and more local work.

Each setting has a run of its own, of one round from the same seed: the same division, clients, first weights and broadcast,
and nothing but the local work differs. All settings are judged together, on one page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedpriv.evidence.reach import DEFAULT, Setting, parse_reach
from fedpriv.experiment.plan import AttackPlan
from fedpriv.util.arguments import argument
from fedpriv.util.errors import UserError
from fedpriv.util.pairs import mapping
from fedpriv.wire.kinds import payload_kind

if TYPE_CHECKING:
    from fedpriv.attacks.contract import Attack
    from fedpriv.federation.run_directory import RunConfig

NOT_FAR = {"gradient-dip": (1, 1), "linear-layer": (1, 1), "dlg": (1, 4)}
"""Steps, and images of a step at most, at which a suite of which none is named runs some attacks. Beyond, they search for a
network an image, or by L-BFGS, which at its share of the budget takes minutes and stays below a guess."""

GIVING = {"gradient-dip": 4, "linear-layer": 3}
"""Attacks by a network an image leave time to the other settings: what their budgets are divided by besides."""

BEYOND = 128
"""What the budget of a search for batches is divided by at several steps, which are unrolled."""

AT_MOST = 4
"""What that of attacks on classes is divided by at most: of many images there are few classes."""

OWN_WORK = ("batch_size", "epochs", "drop_last", "local_steps")
"""Settings of local work: who gives one without a reach asks for that one alone."""

_TRAINED = "training"


def read_reach(target: str, settings: Mapping[str, Any], *, on_run: bool) -> tuple[Setting, ...]:
    """Return the settings that a verb's arguments ask for, or none where one upload is attacked as it is.

    Without a word of it: :data:`fedpriv.evidence.reach.DEFAULT` for uploads of trained weights where a run of one round is
    trained first and nothing is said of its local work.

    Args:
        target: kind of upload.
        settings: arguments of the verb.
        on_run: whether a run is there already.

    Raises:
        UserError: for settings that cannot be read, or arguments that exclude them.
    """
    excluded = _excluding(target, settings, on_run=on_run)
    given = settings.get("reach")
    if given is None:
        own = any(settings.get(name) is not None for name in OWN_WORK)
        return () if excluded or own else parse_reach(DEFAULT)
    found = parse_reach(given)
    if not found:
        return ()
    where = argument("reach", given)
    if excluded:
        raise UserError(f"{where}: {excluded}")
    for name in OWN_WORK:
        if settings.get(name) is not None and (name == "local_steps" or found[-1].steps is not None):
            what = (
                "is what its settings vary" if name == "local_steps" else "is that of an epoch, which is not among them"
            )
            raise UserError(f"{where} and {argument(name)} exclude each other: {argument(name)} {what}")
    return found


def _excluding(target: str, settings: Mapping[str, Any], *, on_run: bool) -> str:
    """Return why there can be no reach; empty where there can."""
    if on_run:
        return f"the run is trained already, by the local work that it was trained by; drop {argument('run')}"
    if payload_kind(target).computed_from != _TRAINED:
        return f"applies to uploads of trained weights, and {target} is none: it does not depend on local steps as theirs do"
    if settings.get("rounds", 1) != 1:
        return f"compares uploads that follow the same broadcast, those of the first round; drop {argument('rounds')}"
    for name in ("stages", "by_round", "round", "budget"):
        if settings.get(name):
            return f"{argument('reach')} and {argument(name)} exclude each other"
    return ""


def settled(config: RunConfig, setting: Setting, own: Mapping[str, Any]) -> tuple[RunConfig, Setting]:
    """Return a run of one setting, and the setting with the epochs that it has.

    Args:
        config: of the first run, quick settings included.
        setting: local work.
        own: what was said of the client's own training: ``batch_size``, ``epochs``; else they are what a run has by default.
    """
    from fedpriv.federation.method import LocalTraining

    if setting.steps is not None and setting.batch is not None:
        training = replace(config.training, batch_size=setting.batch, max_steps=setting.steps, epochs=setting.steps)
        return replace(config, training=training), setting
    plain = LocalTraining()
    epochs, size = own.get("epochs") or plain.epochs, own.get("batch_size") or plain.batch_size
    training = replace(config.training, batch_size=size, max_steps=None, epochs=epochs)
    return replace(config, training=training), replace(setting, epochs=epochs)


def legs_of(
    config: RunConfig | None,
    plan: AttackPlan,
    reach: Sequence[Setting],
    named: Sequence[str],
    settings: Mapping[str, Any],
) -> tuple[tuple[RunConfig, ...], tuple[AttackPlan, ...]]:
    """Return the configurations of the runs that are trained first, and a plan for each; on a run that is there, one plan.

    Args:
        config: of the run that is trained first, or None.
        plan: of all attacks.
        reach: settings of local work; none for the run as it is configured.
        named: attacks that were asked for.
        settings: arguments of the verb.
    """
    if config is None or not reach:
        return () if config is None else (config,), (plan,)
    runs = [settled(config, setting, settings) for setting in reach]
    quick = {"linear-layer"} if "linear-layer" in plan.attacks and _takes_images(config, settings) else set()
    plans = reach_plans(plan, [setting for _, setting in runs], {*named, *quick}, settings)
    return tuple(own for own, _ in runs), plans


def _takes_images(config: RunConfig, settings: Mapping[str, Any]) -> bool:
    """True where the uploaded network begins with a fully connected layer: then nothing is searched for behind it."""
    from fedpriv.experiment.federation import prepare
    from fedpriv.util.device import pick_device

    federation = prepare(config, pick_device("cpu"), download=settings.get("download", False))
    setup = federation.clients[0]
    shared = setup.scratch(federation.method.shared(setup.blueprint, setup.options))
    return next((values.ndim for values in shared.parameters() if values.ndim > 1), 0) == 2


def untaken(plans: Sequence[AttackPlan]) -> tuple[str, ...]:
    """Return a line for each attack that a suite leaves out at some settings of a reach."""
    found = []
    for name in plans[0].attacks:
        where = [plan.reach.label for plan in plans if plan.reach is not None and name not in plan.attacks]
        if where:
            slow = "takes minutes for each upload of many images"
            found.append(f"attack {name!r} at {', '.join(where)}: {slow}; name it to run it")
    return tuple(found)


def reach_plans(
    plan: AttackPlan, reach: Sequence[Setting], named: Collection[str], settings: Mapping[str, Any]
) -> tuple[AttackPlan, ...]:
    """Return a plan for each setting, from the least local work to the most.

    Unless somebody named its budget, an attack has as much of it as takes about as long at every setting (:func:`divisor`).
    What asks who was trained on does so at the first and at the last setting. What asks about a client as a whole, of whom a
    step shows little, does so at the last alone, unless it was named.

    Args:
        plan: of all attacks.
        reach: settings from the least local work to the most.
        named: attacks that are run at every setting.
        settings: arguments of the verb.
    """
    series = tuple(reach)
    return tuple(
        replace(
            plan,
            attacks={
                name: made if _named_budget(made, settings) else _shared(made, setting, alone=len(series) == 1)
                for name, made in plan.attacks.items()
                if place == 0 or name in named or _goes_as_far(name, setting)
            },
            inferences={
                name: made
                for name, made in plan.inferences.items()
                if place == len(series) - 1 or (place == 0 and (made.asks == "images" or name in named))
            },
            reach=setting,
            series=series,
        )
        for place, setting in enumerate(series)
    )


def _named_budget(made: Attack, settings: Mapping[str, Any]) -> bool:
    if made.budget is None or settings.get("iterations") is not None:
        return True
    given = mapping("attack_option", settings.get("attack_option", ()))
    own = given.get(made.name)
    return made.budget in given or (isinstance(own, dict) and made.budget in own)


def _goes_as_far(name: str, setting: Setting) -> bool:
    if name not in NOT_FAR:
        return True
    steps, images = NOT_FAR[name]
    return setting.steps == steps and setting.batch is not None and setting.batch <= images


def _shared(made: Attack, setting: Setting, *, alone: bool) -> Attack:
    whole = int(getattr(made, str(made.budget)))
    part = divisor(setting, classes=made.unit == "class") * (1 if alone else GIVING.get(made.name, 1))
    return replace(made, **{str(made.budget): max(1, whole // part)})


def divisor(setting: Setting, *, classes: bool = False) -> int:
    """Return the divisor of an attack's budget at a setting: an iteration costs as much as there are images.

    >>> [divisor(Setting(1, batch)) for batch in (1, 4, 16)], divisor(Setting(2, 1)), divisor(Setting(), classes=True)
    ([1, 4, 16], 128, 4)
    """
    found = setting.batch if setting.steps == 1 and setting.batch is not None else BEYOND
    return min(found, AT_MOST) if classes else min(found, BEYOND)
