"""A small study: two methods, with and without noise, two attacks, one seed."""

from fedpriv.api.auditing import read_asked

TINY = """
[federation]
dataset = "digits"
auxiliary = 0
per_class = 20
clients = 4
partition = "iid"
rounds = 2
lr = 0.1
"""
STUDY = (
    """methods = ["fedproto", { name = "fedgh", label = "gh" }]
defenses = ["none", { name = "noise", scale = [0.5] }]
attacks = [{ name = "pixels", iterations = 5 }, "membership"]
seeds = [3]
targets = 4
"""
    + TINY
)


def load_study(source):
    """Return the study in a file or a mapping."""
    return read_asked(source, {})[0]
