"""``python -m fedpriv``."""

from fedpriv.cli.main import entry

entry()
