"""Federated methods, one file each, and the table of their names."""

from __future__ import annotations

METHODS: dict[str, str] = {
    "local": "fedpriv.methods.local:METHOD",
    "fedavg": "fedpriv.methods.fedavg:METHOD",
    "fedallrep": "fedpriv.methods.fedallrep:METHOD",
    "fedproto": "fedpriv.methods.fedproto:METHOD",
    "fedgh": "fedpriv.methods.fedgh:METHOD",
    "fedtgp": "fedpriv.methods.fedtgp:METHOD",
    "fpl": "fedpriv.methods.fpl:METHOD",
    "fedhenn": "fedpriv.methods.fedhenn:METHOD",
    "fedhenn-kernel": "fedpriv.methods.fedhenn_kernel:METHOD",
    "fedhenn-homogeneous": "fedpriv.methods.fedhenn_homogeneous:METHOD",
    "fedre": "fedpriv.methods.fedre:METHOD",
    "fedmrl": "fedpriv.methods.fedmrl:METHOD",
    "fml": "fedpriv.methods.fml:METHOD",
    "lg-fedavg": "fedpriv.methods.lg_fedavg:METHOD",
    "fedprox": "fedpriv.methods.fedprox:METHOD",
    "fedrep": "fedpriv.methods.fedrep:METHOD",
    "fedala": "fedpriv.methods.fedala:METHOD",
    "fedavgdbe": "fedpriv.methods.fedavgdbe:METHOD",
    "fedgen": "fedpriv.methods.fedgen:METHOD",
    "fedgen-homogeneous": "fedpriv.methods.fedgen_homogeneous:METHOD",
    "fd": "fedpriv.methods.fd:METHOD",
    "fedral": "fedpriv.methods.fedral:METHOD",
    "fedkd": "fedpriv.methods.fedkd:METHOD",
    "fedapen": "fedpriv.methods.fedapen:METHOD",
}

DEFAULT_METHOD: dict[str, str] = {
    "representation": "fedallrep",
    "prototype": "fedgh",
    "entangled": "fedre",
    "model": "fedavg",
    "classifier": "lg-fedavg",
    "angle-matrix": "fedral",
    "extractor": "fedrep",
    "small-model": "fedmrl",
    "low-rank-model": "fedkd",
    "label-counts": "fedgen",
    "logits": "fd",
    "kernel": "fedhenn-kernel",
}
"""The method that is trained when an attack on a kind of upload is asked for without a run."""
