"""Frozen dataclasses whose arguments are checked when they are built; errors name each wrong argument.

The arguments of a study come from Python, a notebook's parameters (papermill passes lists and booleans as text), JSON
and command-line flags. All of them go through the same checks, which pydantic makes from the annotations.
"""

import ast
import sys
from dataclasses import field, fields
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from util.prompts.text_tasks import DATASETS, dataset_index

Class = TypeVar("Class")
CONFIG = ConfigDict(arbitrary_types_allowed=True, extra="forbid", revalidate_instances="never")


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def checked(cls: type[Class]) -> type[Class]:
    """Make a class a frozen dataclass whose arguments are checked against their annotations.

    Building an object raises ValueError with one line for each wrong argument: its name, its value and what is allowed.
    The class may have a `__post_init__` that raises a ValueError of its own for arguments that do not fit together.
    """
    made: Any = dataclass(cls, frozen=True, config=CONFIG)
    build = made.__init__
    positional = [argument.name for argument in fields(made) if not argument.kw_only]

    @wraps(build)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            build(self, **dict(zip(positional[: len(args)], args, strict=True)), **kwargs)
        except ValidationError as error:
            lines = [_line(cls, problem) for problem in error.errors(include_url=False)]
            raise ValueError("\n".join(lines)) from None

    made.__init__ = __init__
    return made


def _line(cls: type, error: Any) -> str:
    """One of pydantic's errors as a line of text."""
    where = ".".join(map(str, error["loc"]))
    message = error["msg"].removeprefix("Value error, ")
    if not where or message.startswith(f"{where} = "):  # of a __post_init__, or of a check that names the argument
        return message
    if error["type"] == "unexpected_keyword_argument":
        names = ", ".join(argument.name for argument in fields(cls))
        return f"{cls.__name__} has no argument {where!r}; it has {names}"
    if error["type"] == "missing":
        return f"{where} is missing; give it"
    text = message if error["type"] == "value_error" else message[:1].lower() + message[1:]
    return f"{where} = {error['input']!r}: {text}"


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number, not True or False")
    return value


def as_list(value: Any) -> Any:
    """A value as a list: a sequence or set, its text as in "[1, 2]", "['trec', 'sst5']" or "trec, sst5", or one entry.

    Words between commas stay as they are written. Raises ValueError for text that begins as a list and is none.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "(", "{"):
        try:
            value = ast.literal_eval(value.strip())
        except (SyntaxError, ValueError):
            raise ValueError("this text is no list; write it like [1, 2] or ['trec', 'sst5']") from None
    if isinstance(value, str):
        value = [word.strip() for word in value.split(",")]
    return list(value) if isinstance(value, list | tuple | set | range) else [value]


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values. Raises ValueError where there is none, or one of them twice."""
    if not values or len(set(values)) < len(values):
        raise ValueError("give one or more, none of them twice")
    return values


@cache  # so that each is said once
def capped(prompts: int, available: int, source: str) -> int:
    """A number of prompts, or as many as there are; where that is fewer, it says so on stderr."""
    if prompts > available:
        print(f"prompts = {prompts}: {source} has {available} to ask, all are taken", file=sys.stderr, flush=True)
    return min(prompts, available)


QUERIES = 512  # test queries of every data set of StaICC


def check_disjoint(measured: int, choosing: int) -> None:
    """Raises ValueError where the first queries, to be measured, share some with the last, which choose the task."""
    if measured + choosing > QUERIES:
        raise ValueError(
            f"{measured} prompts to be measured and {choosing} to choose the task on share some: there are {QUERIES} "
            "queries; take fewer of either"
        )


def dataset_name(value: Any) -> str:
    """The name of a StaICC data set by its name or index, which may be text. Raises ValueError that lists them."""
    return DATASETS[dataset_index(int(value) if isinstance(value, str) and value.isdigit() else value)]


Int = Annotated[int, BeforeValidator(_no_bool)]
Natural = Annotated[Int, Field(ge=0)]
Count = Annotated[Int, Field(ge=1)]
AtLeastTwo = Annotated[Int, Field(ge=2)]
AtLeastFour = Annotated[Int, Field(ge=4)]  # two halves of two: an interval needs two
Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
Share = Annotated[Number, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1), BeforeValidator(lambda text: str(text) if isinstance(text, Path) else text)]
AsList = BeforeValidator(as_list)  # to be used on a tuple: Annotated[tuple[Natural, ...], AsList]
Distinct = AfterValidator(distinct)  # behind AsList
Counts = Annotated[tuple[Count, ...], AsList, Distinct]
Dataset = Annotated[str, BeforeValidator(dataset_name)]
Datasets = Annotated[tuple[Dataset, ...], AsList, Distinct]
Queries = Annotated[Int, AfterValidator(lambda prompts: capped(prompts, QUERIES, "a data set of StaICC"))]
Prompts = Annotated[Queries, Field(ge=2)]  # an interval needs two
TwoHalves = Annotated[Queries, Field(ge=4)]  # heads are chosen on one half and measured on the other
