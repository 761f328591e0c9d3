"""The embedded model, which configs of edges are run on."""

import pytest

from util.study.model import Model


@pytest.fixture(scope="session")
def model():
    return Model("embedded", device="cpu", verbose=False)
