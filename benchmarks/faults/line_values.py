"""Values for flags and keys: good, odd and hostile ones, by what takes them."""

from __future__ import annotations

import random

HOSTILE = (
    *(
        "",
        " ",
        "\t",
        "-",
        "--",
        "-1",
        "--out",
        "=",
        "a=",
        "=b",
        "a=b=c",
        "a=b,c=d",
        ",",
        ",,",
        "a,b,,",
        ":",
        "a:",
        ":b",
    ),
    *(
        "nan",
        "NaN",
        "inf",
        "-inf",
        "1e400",
        "1e-400",
        "0x10",
        "1_000",
        "１２",
        "٣",
        "½",
        "true",
        "null",
        "None",
        "[]",
        "{}",
    ),
    *("ü", "名前", "🙂", "a\u0301", "\u202egnp.exe", "\udcff\udcfe", "a\nb", "\r", "\x1b[31mred", "\x07", "\x7f"),
    *(
        "../..",
        "/proc",
        ".",
        "..",
        "~",
        "~nobody",
        "%s%n",
        "{0}",
        "$(id)",
        "`id`",
        "'",
        '"',
        "\\",
        "<script>",
        "*",
        "a b",
    ),
    *(
        "json:loads",
        "json:nothing",
        "nothing:here",
        "math:pi",
        "builtins:len",
        "fedpriv.methods.fedre:FedRE",
        "a.b.c:d.e",
    ),
    *("x" * 300, "x" * 5000, "1" * 400, "9" * 5000, "a," * 2000, "a=1," * 500),
)
"""Texts that nothing expects; none holds a NUL, which no command line can."""

WHOLE = ("0", "-1", "-0", "+1", "1.0", "1.5", "2147483648", "4294967296", "9223372036854775808", "-9223372036854775809")
REAL = ("0", "-1", "1", "-0.0", "nan", "inf", "-inf", "1e308", "1e-320", "0.9999999", "1e-3", "1e30", ".5", "5e-1")

GOOD = {
    "dataset": ("digits",) * 6 + ("fashion", "folder", "cifar10", "mnist", "tiny-imagenet"),
    "partition": ("dirichlet", "pathological", "iid", "long_tail"),
    "models": ("small-mlp",) * 4 + ("small", "small-cnn", "lenet-sigmoid", "small-mlp,small-cnn", "cnn4", "fedmrl-5"),
    "mapping": ("ap", "mp", "fc"),
    "capture": ("all", "last", "none", "auto"),
    "device": ("cpu", "auto", "cuda", "cuda:0", "cuda:7", "mps", "meta"),
    "knowledge": (
        *(
            "extractor=white_box",
            "extractor=query",
            "extractor=shadow",
            "extractor=none",
            "labels=given",
            "labels=inferred",
        ),
        *("batch=known", "batch=none", "batch_norm=exact", "attacker_data=same_domain", "attacker_data=none"),
        *("attacker_data=other_domain", "foreign=digits", "foreign=fashion", "foreign=folder:images"),
    ),
    "stages": ("early", "middle", "converged", "early,converged", "early,early"),
    "option": ("mechanism=VAP", "mechanism=RAP", "alpha=0.5", "server_epochs=1", "temperature=1", "weight=1"),
    "attack_option": (
        "iterations=2",
        "dip.iterations=2",
        "patience=2",
        "learning_rate=0.1",
        "dip.nothing=1",
        "restarts=0",
    ),
    "axes": (
        "alpha=10,20",
        "seeds=0,1",
        "lr=0.1",
        "methods.fedgh.server_lr=0.1",
        "defenses.noise.scale=0.1,1",
        "clients=2,3",
    ),
    "seeds": ("0", "0,1", "1"),
    "metrics": ("json:loads", "math:sqrt", "nothing:here"),
    "kind": ("methods", "attacks", "defenses", "datasets", "models", "payloads", "metrics", "targets", "kinds"),
    "budget": ("1", "1,2", "2,1", "1,1"),
    "workers": ("1", "1", "auto", "2"),
    "alpha": ("0.1", "10", "100", "1"),
    "train_fraction": ("0.5", "0.75", "0.9", "0.01"),
    "strangers": ("0", "0.2", "0.5", "0.9"),
    "participation": ("1", "0.5", "0.01"),
    "imbalance": ("1", "2", "100"),
    "target_accuracy": ("0.5", "0.9", "0"),
    "lr": ("0.1", "0.01", "1e-6"),
    "momentum": ("0", "0.9"),
    "weight_decay": ("0", "0.001"),
    "image_size": ("8", "12", "4", "4096"),
    "width": ("16", "128", "65536"),
    "per_class": ("6", "10", "30", "1"),
    "clients": ("2", "3", "5", "1"),
    "public": ("0", "20", "200"),
    "targets": ("1", "2", "1000000000"),
    "keep": ("1", "2"),
    "canaries": ("16", "40", "15"),
    "confidence": ("0.9", "0.95", "0.5", "1"),
    "claim": (
        *("epsilon=1", "delta=1e-3", "unit=image", "unit=client", "of=run", "gaussian=true", "bound=1"),
        *("neighbours=absent", "epsilon=0", "epsilon=nan", "unit=house"),
    ),
    "claimant": ("local-dp", "dp-noise", "nobody"),
}
"""What a parameter would really be given, by its name."""

LABOUR = {"rounds", "epochs", "iterations", "restarts", "local_steps", "canaries"}
"""Settings of which a large value rightly starts long work: large ones are drawn where nothing is carried out."""

PATHS = (
    *(
        "run",
        "attacked",
        "reported",
        "half-run",
        "broken-run",
        "foreign",
        "images",
        "empty",
        "file.txt",
        "link",
        "dangling",
    ),
    *(
        "good.toml",
        "attack.toml",
        "study.toml",
        "bad.toml",
        "binary.bin",
        "missing",
        "missing/deeper",
        "file.txt/inside",
    ),
    *("new", "new/deeper", "run/below", "attacked/average", ".", "..", "/proc/nothing", "/dev/null", "/dev/null/x", ""),
    *("ünï cödé", "a\nb", "-dash", "n" * 300, "/".join(["d"] * 300), "~nobody/x", "\udcff"),
)
"""Paths in the folder of a trial: ours, of strangers, missing and impossible ones."""


def name_of(rng: random.Random, names: tuple[str, ...]) -> str:
    """Return a known name, with a defect now and then: a letter twice, capitals, a name and options, several."""
    name, other = rng.choice(names), rng.choice(names)
    place = rng.randrange(len(name))
    spoilt = (
        name[:place] + name[place:][:1] + name[place:],
        name.upper(),
        f"{name},{other}",
        f"{name}:scale=0.1",
        name + " ",
    )
    return name if rng.random() < 0.8 else rng.choice(spoilt)


def whole(rng: random.Random, *, large: bool) -> str:
    """Return a whole number or nearly one."""
    if not large:
        return rng.choice(("0", "-1", "1", "1", "2", "2.5", "", "x", "nan"))
    return rng.choice((*WHOLE, str(10 ** rng.randrange(40)), str(rng.randrange(-5, 70))))


def hostile(rng: random.Random) -> str:
    """Return a text that nothing expects."""
    return rng.choice(HOSTILE)
