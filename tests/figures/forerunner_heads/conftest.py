"""A tiny model in a folder."""

import pytest

from tests import toys


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    return toys.save(tmp_path_factory.mktemp("models") / "tiny")
