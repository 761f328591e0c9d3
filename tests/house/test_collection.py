"""What is collected where: the tests on a real model run where they are named, and nowhere else."""

from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "arguments, collected",
    [
        ([], False),
        (["tests/prompts/test_prompts.py", "notebooks"], False),
        ([str(HERE / "real_model")], True),
        (["tests/prompts/test_prompts.py", "tests/real_model/test_real_nf4.py"], True),
    ],
)
def test_the_real_model_waits_until_it_is_named(
    pytestconfig: pytest.Config, arguments: list[str], collected: bool
) -> None:
    surroundings = pytestconfig.pluginmanager.getplugin(str(HERE / "conftest.py"))
    config = SimpleNamespace(args=arguments, invocation_params=SimpleNamespace(dir=HERE.parent))
    assert surroundings.pytest_ignore_collect(HERE / "real_model", config) is (None if collected else True)
    assert surroundings.pytest_ignore_collect(HERE / "test_prompts.py", config) is None
    said = surroundings.pytest_report_header(config)
    assert any("make test-real" in line for line in said) is not collected
