"""The runs of a study: who trains under which defense, and beside them the same clients without any exchange."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fedpriv.experiment.federation_settings import run_config
from fedpriv.experiment.study.entries import UNDEFENDED, DefenseEntry, MethodEntry, Study
from fedpriv.experiment.study.grid import refuse_twice, with_values
from fedpriv.pages.baselines import ALONE, same_clients
from fedpriv.util.config import plain

if TYPE_CHECKING:
    from fedpriv.federation.run_directory import RunConfig

DIVIDING = ("dataset", "data_dir", "per_class", "image_size", "partition", "clients", "public", "strangers")
"""Fields of a run's configuration that, with the seed, say which client holds which images."""

_DIVIDING_IF_SET = ("division_seed",)
"""Likewise, where they are set at all."""

_STORING = ("capture", "keep", "checkpoint_every", "evaluate_every")
"""Settings that say what is stored of a run or measured, and nothing of its clients."""


def trainings(study: Study) -> list[tuple[MethodEntry, DefenseEntry]]:
    """Return the methods of a study with their defenses; last ``local`` for every setting of theirs that has none yet.

    Raises:
        UserError: where a setting is wrong by itself, or a method is called as such a ``local``.
    """
    methods = [*study.methods, *(_alone(study) if study.local else ())]
    return [(method, defense) for method in methods for defense in method.defenses or study.defenses]


def _measuring(method: MethodEntry) -> dict[str, Any]:
    return {name: value for name, value in method.federation.items() if name == "evaluate_every"}


def _alone(study: Study) -> list[MethodEntry]:
    seed, found = study.seeds[0], []
    known = {same_clients(config_of(study, own, UNDEFENDED, seed)) for own in study.methods if own.name == ALONE}
    for method in study.methods:
        key = same_clients(config_of(study, method, UNDEFENDED, seed))
        if key in known:
            continue
        known.add(key)
        settings = {name: value for name, value in method.federation.items() if name not in _STORING}
        label = with_values(ALONE, settings)
        found.append(
            replace(
                method,
                label=label,
                title=label,
                name=ALONE,
                options={},
                federation={**_measuring(method), **settings, "capture": "none", "keep": ()},
                target=None,
                attacks=None,
                defenses=(UNDEFENDED,),
                varied={axis: value for axis, value in method.varied.items() if settings.get(axis) == value},
            )
        )
    refuse_twice(study.origin, [*found, *study.methods], "method")
    return found


def config_of(study: Study, method: MethodEntry, defense: DefenseEntry, seed: int) -> RunConfig:
    """Return the configuration of a run of a study.

    Raises:
        UserError: naming the setting that is wrong by itself.
    """
    flags = {**study.federation, **method.federation}
    flags |= {"keep": tuple(flags.get("keep", ()))}
    with study.origin.at(method.keys, method.place_of):
        config = run_config(method.name, flags, seed)
    return replace(config, options=method.options, defenses=defense.choices)


def division_of(config: RunConfig) -> str:
    """Return the key of runs that, with one seed, have the same clients with the same images."""
    values = {name: plain(getattr(config, name)) for name in DIVIDING}
    values |= {
        name: value for name in _DIVIDING_IF_SET if (value := getattr(config, name)) != getattr(type(config), name)
    }
    return digest(json.dumps(values, sort_keys=True))[:12]


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()
