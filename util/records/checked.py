"""Frozen dataclasses that are checked when they are built: every wrong argument names itself and what is allowed.

The arguments of a study come from Python, a notebook's parameters (papermill hands lists and booleans over as text),
JSON and command-line flags. All of them go through the same checks, made by pydantic from the annotations.
"""

import ast
import re
from dataclasses import field
from functools import wraps
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

Class = TypeVar("Class")
CONFIG = ConfigDict(arbitrary_types_allowed=True, extra="forbid", revalidate_instances="never")


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def checked(cls: type[Class]) -> type[Class]:
    """Make a class a frozen dataclass whose arguments are checked by their annotations.

    Building one raises ValueError: the class, each argument that is wrong, its value, and what is allowed. A
    `__post_init__` of the class may refuse what does not go together, with a ValueError in its own words.
    """
    made: Any = dataclass(cls, frozen=True, config=CONFIG)
    build = made.__init__

    @wraps(build)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            build(self, *args, **kwargs)
        except ValidationError as error:
            raise ValueError("\n".join(_told(cls, one) for one in error.errors(include_url=False))) from None

    made.__init__ = __init__
    return made


def _told(cls: type, error: Any) -> str:
    """One thing that is wrong, in a line."""
    if error["type"] == "value_error" and not error["loc"]:
        return str(error["ctx"]["error"])  # of __post_init__: its own words
    first, *rest = error["loc"]
    names = list(cls.__dataclass_fields__)  # type: ignore[attr-defined]
    positional = [name for name in names if not cls.__dataclass_fields__[name].kw_only]  # type: ignore[attr-defined]
    where = ".".join(map(str, [positional[first] if isinstance(first, int) else first, *rest]))
    said = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    if error["type"] == "unexpected_keyword_argument":
        return f"{cls.__name__} has no argument {where!r}; it has {', '.join(names)}"
    if said.startswith(f"{where} = "):
        return said
    return f"{where} = {error['input']!r}: {said[:1].lower()}{said[1:]}"


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("give a number, not True or False")
    return value


def as_list(value: Any) -> Any:
    """A list, or what a command line makes of one: "[1, 2]", "['trec', 'sst5']", "trec, sst5", or one entry alone.

    Raises ValueError for text that is no list.
    """
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            if not re.fullmatch(r"[\w ,./:+-]+", value):
                raise ValueError("this text is no list; write it like [1, 2] or ['trec', 'sst5']") from None
            value = [word.strip() for word in value.split(",")]
    return list(value) if isinstance(value, list | tuple | set | range) else [value]


Int = Annotated[int, BeforeValidator(_no_bool)]
Natural = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Number = Annotated[float, BeforeValidator(_no_bool)]
Share = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
AsList = BeforeValidator(as_list)  # in front of a tuple: Annotated[tuple[Natural, ...], AsList]
