"""A tiny model that reads all prompts of the roles."""

import pytest

from tests import toys
from util.study.model import Model


@pytest.fixture(scope="session")
def toy():
    return Model.given(*toys.pair_with_words(), "given:toy")
