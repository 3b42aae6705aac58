"""Random study files: small valid studies with types, keys, nesting, sizes and names changed."""

from __future__ import annotations

import copy
import json
import math
import random
from typing import Any

from line_values import GOOD, HOSTILE

from fedpriv.attacks import ATTACKS
from fedpriv.defenses import DEFENSES
from fedpriv.methods import METHODS

FEDERATION = {"dataset": "digits", "per_class": 12, "clients": 2, "alpha": 10.0, "rounds": 2, "models": "small-mlp"}

BASES: tuple[dict[str, Any], ...] = (
    {"methods": ["fedgh"], "attacks": ["average"], "targets": 2, "local": False, "federation": FEDERATION},
    {
        "methods": [{"name": "fedproto", "label": "mine"}],
        "defenses": ["none", {"name": "noise", "scale": [0.1, 1.0]}],
        "attacks": [{"name": "average"}],
        "seeds": [0, 1],
        "control": False,
        "knowledge": {"labels": "given"},
        "federation": FEDERATION,
    },
    {
        "methods": [{"name": "fedre", "option": {"mechanism": "VAP"}, "attacks": ["pixels"]}],
        "attacks": [{"name": "pixels", "iterations": 2, "restarts": 1}],
        "axes": {"alpha": [10.0, 20.0], "epochs": [1, 2]},
        "stages": ["converged"],
        "targets": 2,
        "federation": FEDERATION,
    },
    {
        "methods": "fedavg",
        "defenses": [["clip", "noise"]],
        "attacks": ["linear-layer"],
        "federation": {**FEDERATION, "local_steps": 1},
    },
)

ODD: tuple[Any, ...] = (
    *(0, -1, 1, 2, 10**6, 2**31, 2**63, -(2**63), 10**30, 0.0, -0.0, 0.5, 1e308, 1e-320, math.nan, math.inf, -math.inf),
    *(
        True,
        False,
        "",
        " ",
        [],
        [[]],
        {},
        [1],
        [[1]],
        [0.5],
        [True],
        [{}],
        {"name": "noise"},
        {"": 1},
        {"a": {"b": {}}},
    ),
    *(
        "none",
        "all",
        "\x00",
        "a\x00b",
        "digits",
        "noise",
        "noise:scale=0.1/1",
        "clip+noise",
        "fedre:mechanism=VAP",
        *HOSTILE,
    ),
)

LITERALS = (
    "1979-05-27",
    "07:32:00",
    "1979-05-27T07:32:00Z",
    "0xff",
    "1_0",
    "'''x'''",
    "+inf",
    "{ a = 1 }",
    "1e3",
    "-nan",
)
"""Values as TOML has them and JSON does not."""

MOST_LABOUR = {"rounds": 3, "epochs": 3, "iterations": 20, "restarts": 3}
"""A study that is carried out trains for local epochs: larger ones would be long work that is right to do."""


def study(rng: random.Random) -> str:
    """Return the text of a study file."""
    found = copy.deepcopy(rng.choice(BASES))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        _changed(rng, found)
    try:
        text = toml(found)
    except RecursionError:  # several changes made it deep: text is nested deeper than that below
        text = toml(rng.choice(BASES))
    if rng.random() < 0.15:
        text = _spoilt(rng, text)
    return text


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [inner for key in keys for inner in ((*path, key), *_places(value[key], (*path, key)))]


def _changed(rng: random.Random, found: dict[str, Any]) -> None:
    """Change one place of a study."""
    places = _places(found)
    if not places:
        return
    *outer, last = rng.choice(places)
    holder: Any = found
    for key in outer:
        holder = holder[key]
    sort = rng.randrange(9)
    if sort <= 3:
        holder[last] = _value(rng, str(last))
    elif sort == 4:
        del holder[last]
    elif sort == 5 and isinstance(holder, dict):
        holder[_key(rng, str(last))] = holder.pop(last)
    elif sort == 6:
        holder[last] = rng.choice(([holder[last]], {"name": holder[last]}, [holder[last]] * 2, {"x": [holder[last]]}))
    elif sort == 7:
        holder[last] = _large(rng, holder[last])
    elif isinstance(holder, dict):
        holder[
            _key(rng, rng.choice(("seeds", "stages", "width", "image-size", "public", "clients", "axes", "nothing")))
        ] = _value(rng)


def _value(rng: random.Random, key: str = "") -> Any:
    known = {
        "methods": tuple(METHODS),
        "attacks": tuple(ATTACKS),
        "defenses": tuple(DEFENSES),
        "name": (*METHODS, *DEFENSES),
    }
    sort = rng.random()
    if key in known and sort < 0.5:
        return rng.choice(known[key])
    if key in GOOD and sort < 0.4:
        return rng.choice(GOOD[key])
    if key in MOST_LABOUR and sort < 0.5:
        return rng.randrange(-1, MOST_LABOUR[key] + 1)
    value = copy.deepcopy(rng.choice(ODD))
    large = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and key in MOST_LABOUR
        and value > MOST_LABOUR[key]
    )
    return -1 if large else value


def _key(rng: random.Random, key: str) -> str:
    return rng.choice(
        (key, key.upper(), key[:-1], key + "s", key.replace("_", "-"), "ü" + key, "a.b", "", "\x00", "x" * 3000)
    )


def _large(rng: random.Random, value: Any) -> Any:
    """Return a value many times, or deep inside others."""
    deep = value
    for _ in range(rng.choice((5, 40, 120))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return rng.choice((deep, [value] * 3000, list(range(3000)), {f"k{number}": value for number in range(500)}))


def _spoilt(rng: random.Random, text: str) -> str:
    """Return text with something wrong in its letters."""
    place = rng.randrange(len(text) + 1)
    rows = text.splitlines(keepends=True)
    return rng.choice(
        (
            text[:place],
            text[:place] + rng.choice("\x00\x1b\ud800\ufeff\u2028[]{}=\"'\\\n") + text[place:],
            "".join([*rows, rng.choice(rows)]) if rows else text,
            text + f"\nextra = {rng.choice(LITERALS)}\n",
            text.replace("0", rng.choice(LITERALS), 1),
            "x = " + "[" * 500 + "]" * 500 + "\n" + text,
            "\ufeff" + text,
            text.replace("\n", "\r"),
        )
    )


def toml(value: dict[str, Any]) -> str:
    """Return a table as TOML, inner tables inline."""
    return "".join(f"{json.dumps(str(key))} = {_inline(entry)}\n" for key, entry in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(str(key))} = {_inline(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    return json.dumps(value) if "\x7f" not in str(value) else json.dumps(value).replace("\x7f", "\\u007f")
