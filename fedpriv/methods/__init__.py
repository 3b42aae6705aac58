"""Federated methods, one file each, and the table of their names."""

from __future__ import annotations

METHODS: dict[str, str] = {
    "local": "fedpriv.methods.local:METHOD",
    "fedavg": "fedpriv.methods.fedavg:METHOD",
    "fedallrep": "fedpriv.methods.fedallrep:METHOD",
    "fedproto": "fedpriv.methods.fedproto:METHOD",
    "fedgh": "fedpriv.methods.fedgh:METHOD",
    "fedre": "fedpriv.methods.fedre:METHOD",
}

DEFAULT_METHOD: dict[str, str] = {
    "representation": "fedallrep",
    "prototype": "fedgh",
    "entangled": "fedre",
    "model": "fedavg",
}
"""The method that is trained when an attack on a kind of upload is asked for without a run."""
