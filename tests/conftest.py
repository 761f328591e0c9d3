"""The same surroundings for every test: no network, no progress bars, no screen, nothing written into the clone.

Environment variables are set here, before any test imports a library that reads them, and only where the caller has
not set them. `make test` loads this file for the notebooks too (-p tests.conftest).
"""

import importlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRATCH = Path(tempfile.mkdtemp(prefix="icl-tests-"))

os.environ.setdefault("ICL_MATERIAL", str(SCRATCH / "material"))
os.environ.setdefault("ICL_OUTPUT", str(SCRATCH / "output"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as util does; some tests import torch before util
if "OMP_NUM_THREADS" in os.environ:  # torch reads this one; the other libraries follow
    for name in ("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, os.environ["OMP_NUM_THREADS"])

import matplotlib  # noqa: E402
import pytest  # noqa: E402

matplotlib.use("Agg")  # not MPLBACKEND: the kernels of notebooks would inherit it and show no figures

# outputs of notebook cells that nbval would compare and that are not results
NOT_COMPARED = ("text/html", "application/vnd.jupyter.widget-view+json", "application/javascript", "stderr")


def pytest_collectstart(collector: pytest.Collector) -> None:
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += NOT_COMPARED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of classes beyond `architectures.QUICK` are slow: `make test` leaves them to `make test-all`."""
    for item in items:
        if wants_a_class_beyond_the_quick(item):
            item.add_marker(pytest.mark.slow)


def wants_a_class_beyond_the_quick(item: pytest.Item) -> bool:
    known = sys.modules.get("tests.architectures")  # not imported for notebooks
    if known is None or not hasattr(item, "callspec"):
        return False
    classes = known.SUPPORTED.keys() | known.ADAPTED.keys() | known.BYPASSING.keys()
    named = {value for value in item.callspec.params.values() if isinstance(value, str)}
    return bool(named & (classes - known.QUICK))


@pytest.fixture
def wide_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmax never narrower than its input.

    Many classes take the softmax of a float64 model in float32, which would hide what is compared.
    """
    import torch

    # transformers 5.19 compiles this class when it is imported, for which it needs PyTorch's own softmax
    importlib.import_module("transformers.models.gpt_bigcode.modeling_gpt_bigcode")
    softmax = torch.nn.functional.softmax

    def wide(values: Any, dim: int = -1, dtype: Any = None, **_: Any) -> Any:
        return softmax(values, dim=dim, dtype=torch.promote_types(values.dtype, dtype or values.dtype))

    monkeypatch.setattr(torch.nn.functional, "softmax", wide)


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and figures are written into the folder of the test."""
    monkeypatch.setenv("ICL_OUTPUT", str(tmp_path))


@pytest.fixture
def material(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records lie in the folder of the test, where nothing has been measured yet."""
    monkeypatch.setenv("ICL_MATERIAL", str(tmp_path / "material"))


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model can be loaded."""
    from tests.unloaded import never

    monkeypatch.setattr("util.study.model.load_ICL_model", never)


@pytest.fixture(scope="session")
def embedded() -> Any:
    """The embedded model."""
    from util.study.model import Model

    return Model("embedded", device="cpu", verbose=False)


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy Llama and the toy tokenizer, which no test changes."""
    from tests import toys

    return toys.save(tmp_path_factory.mktemp("models") / "tiny")


def pytest_report_header() -> str:
    threads = os.environ.get("OMP_NUM_THREADS", f"all of {os.cpu_count()}")
    return f"cache: {os.environ['ICL_MATERIAL']}, output: {os.environ['ICL_OUTPUT']}, threads: {threads}"


def pytest_unconfigure() -> None:
    shutil.rmtree(SCRATCH, ignore_errors=True)
