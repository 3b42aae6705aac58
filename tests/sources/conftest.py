"""Small runs, copied once a module."""

import pytest
from federations import trained_small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    made = {}

    def get(config):
        if repr(config) not in made:
            made[repr(config)] = trained_small(tmp_path_factory.mktemp("trained") / "run", config)
        return made[repr(config)]

    return get
