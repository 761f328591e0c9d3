"""What commands share: flags, as dataclasses whose fields are the flags, and where and how a result is written.

Lists are written with commas in every command, 0,1,2; heads as L5H1,L11H3 or 5.1,11.3, or as a JSON file. PyTorch is
not imported before it runs.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
import pandas as pd
from cyclopts import CoercionError, Parameter
from cyclopts.validators import Number

from util import paths
from util.figures.edits import named_heads
from util.show import files
from util.stats.heads import Head
from util.stats.intervals import Intervals
from util.study.checked import as_list, distinct

if TYPE_CHECKING:
    from util.figures.task_study import TaskStudy
    from util.study.model import Model


def _listed(kind: Any, tokens: Any) -> Any:
    """The entries of a list, of the type that the flag has. Raises ValueError for a wrong one."""
    text = tokens[0].value
    try:
        return distinct(tuple(get_args(kind)[0](str(entry)) for entry in as_list(text)))
    except ValueError:
        raise ValueError(f"{text!r:.80}: give one or more with commas between, as in 0,1,2, none twice") from None


def _heads(_: Any, tokens: Any) -> tuple[Head, ...]:
    """Heads that are named, see `named_heads`. Raises ValueError for what names none."""
    if not (named := named_heads(tokens[0].value)):
        raise ValueError("it names no head; write L5H1,L11H3")
    return named


def _whole(_: Any, tokens: Any) -> int:
    """A whole number. Raises CoercionError for another one, which cyclopts would round."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise CoercionError(token=tokens[0], target_type=int) from None


LIST = Parameter(n_tokens=1, json_list=False, converter=_listed)
Words = Annotated[tuple[str, ...], LIST]
Numbers = Annotated[tuple[int, ...], LIST]
Heads = Annotated[tuple[Head, ...], Parameter(n_tokens=1, json_list=False, converter=_heads)]
Share = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]
Int = Annotated[int, Parameter(converter=_whole)]
Seed = Annotated[Int, Parameter(validator=Number(gte=0, lt=2**63))]
AtLeastTwo = Annotated[Int, Parameter(validator=Number(gte=2))]  # an interval needs two


@Parameter(name="*")
@dataclass(frozen=True)
class ModelFlags:
    """A model, and how it is loaded.

    Args:
        model: embedded (the default), smollm2, gemma3, a hub id, a folder, a GGUF file
        revision: a commit, branch or tag of the hub
        dtype: float32, bfloat16, float16, float64; default: float32 on the CPU and up to 1 B parameters, else bfloat16
        quantized: 4-bit weights (NF4), on a GPU or the CPU
        device: cpu, cuda, cuda:1, ...; default: what there is
        device_map: auto: over all GPUs and the CPU
        cache_dir: the hub's cache; default: HF_HOME's
    """

    model: str = "embedded"
    _: KW_ONLY
    revision: str | None = None
    dtype: str = "auto"
    quantized: bool = False
    device: str = "auto"
    device_map: Literal["auto"] | None = None
    cache_dir: str | None = None

    @property
    def source(self) -> Model:
        """The model, not loaded yet. Raises ValueError for options that do not go together."""
        from util.study.model import Model

        loading = asdict(self)
        return Model(loading.pop("model"), **loading)

    def command(self, name: str, **flags: Any) -> str:
        """The command line that gives this model and those flags that are not None; of a path, its last part alone."""
        shown = Path(self.model).name if Path(self.model).exists() else self.model
        flags |= {"revision": self.revision, "dtype": None if self.dtype == "auto" else self.dtype}
        words = [f"--{flag} {shlex.quote(str(value))}" for flag, value in flags.items() if value is not None]
        return " ".join([f"python -m util {name}", shlex.quote(shown), *words, *["--quantized"] * self.quantized])


@Parameter(name="*")
@dataclass(frozen=True)
class Reference:
    """What means are taken over.

    Args:
        reference: other prompts of the task, StaICC's, or samples of MNLI
        reference_prompts: how many prompts or samples
        reference_data: of reference mnli: a folder with train.jsonl, with the column premise (default: the hub)
    """

    reference: Literal["task", "staicc", "mnli"] = "task"
    reference_prompts: Int = 64
    reference_data: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class Queries:
    """The prompts that are answered.

    Args:
        task: one or more, such as repetition,sst2,trec, or a file of your own, kinds.csv; a wrong name lists all
        data: where the texts of a text task are: hub, or a folder; default: StaICC's where it has them, else the hub;
            of the letter and word tasks, a clone of Induction_Heads_ICL with its authors' rows
        k: demonstrations of each query
        prompts: queries of each task, at least 2
        seed: of demonstrations; several are averaged
        labels: other words than the task's own, one for each class, such as Foo,Bar
    """

    task: Words = ("wordseq1",)
    data: str | None = None
    k: Int = 10
    prompts: AtLeastTwo = 60
    seed: Numbers = (42,)
    labels: Words | None = None

    def studies(self, model: Model, **more: Any) -> list[TaskStudy]:
        """A study for each task and seed. more: of `TaskStudy`. Raises ValueError for an unknown task."""
        from util.figures.task_study import TaskStudy

        more |= {"data": self.data, "labels": self.labels}
        studies = [
            TaskStudy(model, task, self.k, self.prompts, seed, **more) for task in self.task for seed in self.seed
        ]
        if len({(study.task, study.seed) for study in studies}) < len(studies):  # a file may be named in two ways
            raise ValueError(f"task = {','.join(self.task)}: give each task once")
        return studies


@Parameter(name="*")
@dataclass(frozen=True)
class Chosen:
    """The heads that are edited.

    Args:
        heads: such as L5H1,L11H3 or 5.1,11.3, counted from 0, or a JSON file [[layer, head], ...]
        top: this share of all heads, the best by prefix matching, rounded up (default: 0.01)
        random: other heads instead, with as many in each layer, none of them an induction head, drawn by this seed
    """

    heads: Heads | None = None
    top: Share | None = None
    random: Seed | None = None

    def __post_init__(self) -> None:
        if self.heads and self.top:
            raise ValueError("give --heads or --top, not both")


# ------------------------------------------------------------------------------------------------ results


def made(folder: Path) -> Path:
    """The folder, made before any work. Raises ValueError where nothing can be written there."""
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError) as error:  # `~` of a user whom there is not
        why = getattr(error, "strerror", error)
        raise ValueError(f"out = {str(folder)!r} ({why}): name a folder that can be written to") from None
    return folder


def write(
    folder: Path,
    request: Mapping[str, Any],
    results: Mapping[str, Any],
    rows: pd.DataFrame,
    table: pd.DataFrame,
    studies: Iterable[Any],
) -> None:
    """Write result.json and rows.csv, each whole, and print the table: other floats than intervals with two digits.

    folder, request: as `Out.checked` gives them; results: what result.json has under "results", see `files.plain`;
    studies: those whose records it is made of.
    """
    origins = {file: origin for study in studies for file, origin in study.origins.items()}
    first, *others = origins.values()
    result = {
        "request": request,
        "provenance": {name: value for name, value in first.items() if all(o.get(name) == value for o in others)},
        "records": [*origins],
        "results": files.plain(results),
    }
    exact = rows.astype(dict.fromkeys(rows.select_dtypes("float32").columns, "float64"))
    print(
        table.map(_cell, na_action="ignore").to_string(na_rep=""),
        paths.write_whole(folder / "result.json", json.dumps(result, indent=1) + "\n"),
        paths.write_whole(folder / "rows.csv", exact.to_csv(index=False, lineterminator="\n")),
        sep="\n",
    )


@Parameter(name="*")
@dataclass(frozen=True)
class Out:
    """Where a result goes, and whether it is measured again.

    Args:
        out: receives result.json and rows.csv; default: a folder of its own for every request, see what is printed
        redo: measure again what is cached
    """

    out: Path | None = None
    redo: bool = False

    def checked(self, command: str, study: Any, **settings: Any) -> tuple[Path, dict[str, Any]]:
        """The folder of a result, and all that decides it, in plain JSON: the model of a study, and settings.

        Raises ValueError, before any work, for a folder that cannot be made.
        """
        request = json.loads(json.dumps({"measure": command, **study.model.request, **settings}))
        from util.study.records import place_of  # brings torch

        return made(self.out or paths.output("commands") / place_of(request, Path()).stem), request


def _cell(value: Any) -> Any:
    return f"{value:.2g}" if isinstance(value, float) else str(value) if isinstance(value, tuple) else value


def by_head(maps: Mapping[str, Any]) -> pd.DataFrame:
    """A line for each head of maps [L, H]; one with intervals has three columns."""
    columns: dict[str, Any] = {}
    for name, values in maps.items():
        if isinstance(values, Intervals):
            columns |= {name: values.value, f"{name} low": values.low, f"{name} high": values.high}
        else:
            columns[name] = values
    layer, head = np.indices(next(iter(columns.values())).shape)
    return pd.DataFrame({name: of_map.ravel() for name, of_map in {"layer": layer, "head": head, **columns}.items()})
