"""The command line: which commands there are, flags from a JSON file, shell completion, and how errors end a run.

A command is a function of a module of this room, which is imported when the command is asked for; its signature and
docstring are its flags. PyTorch is imported by what runs, never for help or for a wrong flag.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict
from rich.console import Console

PROGRAM = "icl-circuits" if Path(sys.argv[0]).stem == "icl-circuits" else "python -m util"
HELP = f"""{PROGRAM} COMMAND --help has all flags; util/commands/README.md has examples.

A command ends with 0; with 1 and one message where an input has to be mended; with 2 where a flag is wrong."""
NO_MEMORY = "this needs more memory than there is: ask for less"
COMMANDS = {  # by module, what each command does
    "stored": {
        "card": "which circuits of in-context learning a model has, on one page",
        "atlas": "cards side by side: how many heads of each role, how deep, and which serve IOI too",
        "claims": "verdicts on the papers' claims (hours; goes on where it stopped)",
        "draw": "stored figures again, from their values alone",
        "replication": "two runs' values: what held and what moved",
    },
    "measures": {
        "scores": "prefix-matching scores of all heads, and their companions, on repeated random tokens",
        "forerunner": "on how many prompts each head reads the token before a label (forerunner token heads)",
        "ioi": "what each head carries in indirect object identification, by patching it",
        "roles": "which of nine roles heads have, each by score and effect",
        "edges": "edge ablation between token types, from JSON",
        "look": "a page that shows what heads do on a text: whom they read, what they write, what is known of them",
    },
    "evaluate": {
        "means": "mean outputs of heads, or what heads make of their mean input, measured once for all of `ablate`",
        "ablate": "classification tasks with heads replaced by their mean, beside the whole model and random heads",
        "knockout": "classification tasks with the induction pattern forbidden to some heads",
        "evaluate": "lm-evaluation-harness on a model with heads ablated or their pattern knocked out",
    },
}


def _shown(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


app = App(
    name=PROGRAM,
    help=HELP,
    help_format="plaintext",
    help_formatter="plain",
    version_flags=(),
    default_parameter=Parameter(negative=(), show_default=_shown),
    console=Console(width=140, highlight=False),
    result_action="return_value",
)
for module, commands in COMMANDS.items():
    for command, purpose in commands.items():
        app.command(f"util.commands.{module}:{command}", help=purpose, name=command)
app.meta.end_of_options_delimiter = ""  # what follows `--` is the command's
app.suppress_keyboard_interrupt = app.meta.suppress_keyboard_interrupt = False  # `main` says something


@app.meta.default
def with_options(
    *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Path | None = None,
    completion: Literal["bash", "zsh", "fish"] | None = None,
) -> Any:
    """Parse the arguments of a command, and run it.

    Args:
        config: a JSON object of flags by their names, such as {"model": "smollm2", "prompts": 8}; others win
        completion: print a script that completes flags in this shell, for the alias util='python -m util'
    """
    if completion:
        return print(app.generate_completion(prog_name="util", shell=completion))
    app.config = () if config is None else Dict(flags_in(config), source=str(config), use_commands_as_keys=False)
    return app(words, exit_on_error=False, print_error=False)


def from_json(text: str, where: str) -> Any:
    """What a text of JSON holds. Raises ValueError, with where it comes from, for text that is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is no JSON ({error}); mend it") from None


def flags_in(file: Path) -> dict[str, Any]:
    """The flags of a JSON file; lists and objects are text, as on a command line.

    Raises ValueError for what is no object of flags.
    """
    given = from_json(file.read_text(encoding="utf-8-sig"), f"--config {file}")
    if not isinstance(given, dict):
        raise ValueError(f"--config {file}: {given!r:.60} is no object of flags; write one, by their names")
    return {name: json.dumps(value) if isinstance(value, list | dict) else value for name, value in given.items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command. Ends the process with status 1 and a message for what a user can mend, 2 for wrong flags.

    Ends it with 141 and no message, as other programs do, where nobody reads its output any more (`| head -1`).
    """
    try:
        try:
            app.meta(argv, exit_on_error=False, print_error=False)
            return
        finally:
            sys.stdout.flush()  # what is still buffered may have no reader either
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter, which flushes again
        sys.exit(141)
    except CycloptsError as error:
        status, message = 2, f"{str(error).rstrip('. ')}; --help lists the flags"
    except (ValueError, OSError, ImportError, FloatingPointError, RecursionError) as error:
        status, message = 1, str(error)  # it says what to mend
        for flag in re.findall(r"--[a-z-]+", " ".join(argv or sys.argv[1:])):  # by the name that was typed
            message = re.sub(rf"^{flag[2:].replace('-', '_')} = ", f"{flag} ", message, flags=re.MULTILINE)
    except MemoryError as error:  # Python's own has no message
        status, message = 1, str(error) or NO_MEMORY
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # PyTorch's, which is not imported here
            raise
        status, message = 1, f"{NO_MEMORY} ({str(error).partition('. ')[0]})"
    except KeyboardInterrupt:
        status, message = 130, "interrupted; what is in the cache is not measured again"
    print(message, file=sys.stderr)
    sys.exit(status)
