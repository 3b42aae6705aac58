"""Federated methods, those that share their parts in one file, and the table of their names."""

from __future__ import annotations

from functools import cache
from importlib import resources

from fedpriv.util.registry import Registry

METHODS = Registry(
    "method",
    {
        "local": "fedpriv.methods.weights:LOCAL",
        "fedavg": "fedpriv.methods.fedavg:METHOD",
        "fedallrep": "fedpriv.methods.fedre:FEDALLREP",
        "fedgh": "fedpriv.methods.fedre:FEDGH",
        "fedproto": "fedpriv.methods.fedproto:METHOD",
        "fedtgp": "fedpriv.methods.fedproto:FEDTGP",
        "fpl": "fedpriv.methods.fpl:METHOD",
        "fedhenn": "fedpriv.methods.fedhenn:METHOD",
        "fedhenn-kernel": "fedpriv.methods.fedhenn:KERNEL",
        "fedhenn-homogeneous": "fedpriv.methods.fedhenn:HOMOGENEOUS",
        "fedre": "fedpriv.methods.fedre:METHOD",
        "fedmrl": "fedpriv.methods.fedmrl:METHOD",
        "fml": "fedpriv.methods.fml:METHOD",
        "lg-fedavg": "fedpriv.methods.fedavg:LG_FEDAVG",
        "fedprox": "fedpriv.methods.fedavg:FEDPROX",
        "fedrep": "fedpriv.methods.fedrep:METHOD",
        "fedala": "fedpriv.methods.fedala:METHOD",
        "fedavgdbe": "fedpriv.methods.fedavgdbe:METHOD",
        "fedgen": "fedpriv.methods.fedgen:METHOD",
        "fedgen-homogeneous": "fedpriv.methods.fedgen:HOMOGENEOUS",
        "fd": "fedpriv.methods.fedproto:FD",
        "fedmd": "fedpriv.methods.fedmd:METHOD",
        "ds-fl": "fedpriv.methods.fedmd:DS_FL",
        "fedral": "fedpriv.methods.fedral:METHOD",
        "fedkd": "fedpriv.methods.fedkd:METHOD",
        "fedapen": "fedpriv.methods.fml:FEDAPEN",
    },
    group="fedpriv.methods",
    contract="fedpriv.federation.method:refuse_no_method",
)
"""Names of methods and where they are; of those that upload the same, the first is the usual one."""


def default_method(kind: str) -> str | None:
    """Return the method that is trained for an attack on a kind of upload without a run: the first there is."""
    return next((name for name, method in METHODS.load_all().items() if kind in method.uploads), None)


@cache
def references() -> dict[str, str]:
    """Return the BibTeX entry of the paper behind each method, by the method's name; some have none.

    >>> references()["fedproto"].splitlines()[0]
    '@inproceedings{tan2022fedproto,'
    """
    text = resources.files("fedpriv.methods").joinpath("references.bib").read_text(encoding="utf-8")
    texts: dict[str, str] = {}
    for entry in text.strip().split("\n\n"):
        for line in entry.splitlines():
            field, _, value = line.partition("=")
            if field.strip() == "keywords":
                texts |= dict.fromkeys(value.strip(" {},").split(", "), entry)
    return texts
