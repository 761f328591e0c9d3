"""Flags that several commands have, as dataclasses whose fields are the flags. PyTorch is not imported before it runs.

Lists are written with commas in every command, 0,1,2; heads by their names, L5H1,L11H3, or as a JSON file.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from cyclopts import Parameter
from cyclopts.validators import Number

from util.commands.frame import from_json
from util.roles.heads import named_heads
from util.stats.heads import Head
from util.study.checked import as_list, distinct

if TYPE_CHECKING:
    from util.study.model import Model

SHARE = 0.01  # of all heads: the smaller of the two that Crosbie & Shutova ablate


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


def _folder(_: Any, tokens: Any) -> Path:
    if not tokens[0].value:
        raise ValueError("name a folder")
    return Path(tokens[0].value)


Words = Annotated[tuple[str, ...], Parameter(converter=_listed, n_tokens=1, json_list=False)]
Seeds = Annotated[tuple[int, ...], Parameter(converter=_listed, n_tokens=1, json_list=False)]
Heads = Annotated[tuple[Head, ...], Parameter(converter=_heads, n_tokens=1, json_list=False)]
Share = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]
Seed = Annotated[int, Parameter(validator=Number(gte=0, lt=2**63))]
Folder = Annotated[Path, Parameter(converter=_folder)]


@Parameter(name="*")
@dataclass(frozen=True)
class Asked:
    """A model, and how it is loaded.

    Args:
        model: embedded (the default), smollm2, a hub id, a folder, a GGUF file
        revision: a commit, branch or tag of the hub
        dtype: float32, bfloat16, float16, float64; default: as README says
        quantized: 4-bit weights (NF4; CUDA)
        device: cpu, cuda, cuda:1, ...; default: what there is
        device_map: "auto", or a JSON object of modules
    """

    model: str = "embedded"
    _: KW_ONLY
    revision: str | None = None
    dtype: str = "auto"
    quantized: bool = False
    device: str = "auto"
    device_map: str | None = None

    @property
    def source(self) -> Model:
        """The model, not loaded yet. Raises ValueError for what there is not."""
        from util.study.model import Model

        places: Any = self.device_map
        if places and places[0] == "{":
            places = from_json(places, f"--device-map {places:.80}")
        return Model(self.model, self.revision, self.dtype, self.quantized, device=self.device, device_map=places)


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
    reference_prompts: int = 64
    reference_data: str | None = None


@Parameter(name="*")
@dataclass(frozen=True)
class StaiccReference(Reference):
    """The same, by default StaICC's prompts."""

    reference: Literal["task", "staicc", "mnli"] = "staicc"


@Parameter(name="*")
@dataclass(frozen=True)
class Compared:
    """The prompts that are answered, and the heads that are edited.

    Args:
        task: one or more, such as repetition,recursion,sst2; a wrong name lists all
        data: where the texts of a text task are: hub, or a folder; default: StaICC's where it has them, else the hub
        k: demonstrations of each query
        prompts: queries of each task, at least 2
        seed: of demonstrations; several are averaged
        labels: other words than the task's own, one for each class, such as Foo,Bar
        hard_negatives: letter tasks: Bar sequences repeat letters too
        heads: such as L5H1,L11H3, counted from 0, or a JSON file [[layer, head], ...]
        top: this share of all heads, the best by prefix matching, rounded up (default: 0.01)
        controls: also this many sets of other heads, with as many in each layer, none of them an induction head
        random: one such set, drawn by this seed, in place of the heads
        control_seed: of --controls
    """

    task: Words = ("wordseq1",)
    data: str | None = None
    k: int = 10
    prompts: int = 60
    seed: Seeds = (42,)
    labels: Words | None = None
    hard_negatives: bool = False
    heads: Heads | None = None
    top: Share | None = None
    controls: Seed = 0
    random: Seed | None = None
    control_seed: Seed = 0
