"""A tiny model that reads all prompts of the roles."""

import pytest

from tests import toys
from util.study.model import Model


@pytest.fixture(scope="session")
def toy():
    model, tokenizer = toys.pair_with_words()
    return Model.given(model, tokenizer, "given:toy")
