"""Where modules of earlier versions went: importing one fails with its new name in the message."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ENGINE = "adapters attention finite handshake instruments layer_calls means memory replay"
MOVED = {
    **{f"util.{name}": f"util.engine.{name}" for name in ENGINE.split()},
    "util.cache": "util.records.cache",
    "util.embedded": "util.models.embedded, util.models.planted and util.training",
    "util.experiments": "the `study` of each figure, such as util.figures.ioi_patching.study",
    "util.measures": "the `measures` of each figure, such as util.figures.ioi_patching.measures, and util.stats",
    "util.plots": "the `plots` of each figure, such as util.figures.ioi_patching.plots",
    "util.scoring": "util.engine.label_scores",
    "util.splicing": "util.edges.splicing",
    "util.tasks": "util.prompts",
}


class _Moved(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Never finds a module. Raises ModuleNotFoundError, with the new name, for one that moved."""
        if fullname in MOVED:
            raise ModuleNotFoundError(f"{fullname} has moved: import {MOVED[fullname]} instead", name=fullname)
        return None


def tell() -> None:
    """From now on, an import of a module that moved says where it went."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved())
