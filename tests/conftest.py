"""Shared by all tests: one thread, so that results do not depend on the machine's cores; small hypothesis budgets."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("quick", max_examples=25, deadline=None)
settings.load_profile("quick")
