"""fedpriv: what does a semi-honest server learn from what federated-learning clients upload?

The package itself imports nothing heavy, so that ``fedpriv --help`` answers at once.
"""

__version__ = "0.1.0"
