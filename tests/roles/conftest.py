"""A tiny model that reads all prompts of the roles."""

import pytest

from tests import toys
from util.study.model import Model


@pytest.fixture(scope="session")
def toy():
    tokenizer = toys.tokenizer(on_tasks=True)
    model = toys.model("llama")
    model.resize_token_embeddings(len(tokenizer))
    return Model.given(model, tokenizer, "given:toy")
