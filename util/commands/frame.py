"""The command line: which commands there are, flags from a JSON file, shell completion, and how errors end a run.

A command is a function of a module of this room, which is imported when the command is asked for; its signature and
docstring are its flags. PyTorch is imported by what runs, never for help or for a wrong flag.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Dict
from rich.console import Console

PROGRAM = "python -m util"
ENDS = "ends with 0; with 1 and one message where an input has to be mended; with 2 where a flag is wrong"
# By module, what each command does, and arguments to begin with.
COMMANDS: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "stored": {
        "card": (
            "which circuits of in-context learning a model has, on one page",
            ("smollm2", "smollm2 --size small --out card", "gpt2-large --seed 1", "embedded --untrained 0"),
        ),
        "atlas": (
            "cards side by side: how many heads of each role, how deep, and which serve IOI too",
            ("data/cards data/cards/smollm2", "cards/gpt2 cards/pythia-160m --out atlas"),
        ),
        "claims": (
            "verdicts on the papers' claims (hours; goes on where it stopped)",
            ("embedded --prompts 100", "smollm2"),
        ),
        "draw": (
            "stored figures again, from their values alone",
            ("smollm2", "embedded --figure toy_induction_head --width 3.3 --out pictures"),
        ),
        "replication": (
            "two runs' values: what held and what moved",
            ("data/values experiment_material/replications/embedded-1/data/values",),
        ),
    },
    "measures": {
        "scores": (
            "prefix-matching scores of all heads, and their companions, on repeated random tokens",
            (
                "smollm2",
                "smollm2 --sequences 20 --seed 100 --out scores",
                "meta-llama/Meta-Llama-3-8B --revision main --dtype bfloat16",
            ),
        ),
        "forerunner": (
            "on how many prompts each head reads the token before a label (forerunner token heads)",
            ("smollm2 --dataset trec --k 4 --prompts 64", "smollm2 --dataset 2 --threshold 5 --untrained"),
        ),
        "ioi": (
            "what each head carries in indirect object identification, by patching it",
            ("smollm2 --prompts 32", "gpt2-large --corruption abc --prompts 128 --seed 1 --out ioi"),
        ),
        "edges": ("edge ablation between token types, from JSON", ("--examples", "CONFIG.json")),
    },
    "edits": {
        "means": (
            "mean outputs of heads, or what heads make of their mean input, measured once for all of `ablate`",
            ("smollm2", "smollm2 --mode input_mean --reference mnli --reference-prompts 500"),
        ),
        "ablate": (
            "classification tasks with some heads replaced by their mean, beside the whole model and random heads",
            (
                "smollm2 --task wordseq1 --top 0.01 --controls 10",
                "smollm2 --task repetition,recursion --k 5 --seed 42,43,44 --heads L17H4,L5H1 --mode zero",
                "smollm2 --top 0.01 --random 42",
                "smollm2 --mode input_mean --reference mnli",
            ),
        ),
        "knockout": (
            "classification tasks with the induction pattern forbidden to some heads",
            (
                "smollm2 --task wordseq1 --top 0.01 --controls 3",
                "smollm2 --heads heads.json --pattern previous-part --out knocked-out",
            ),
        ),
    },
    "evaluate": {
        "evaluate": (
            "lm-evaluation-harness on a model with heads ablated or their pattern knocked out",
            (
                "--top 0.01 --mode mean -- --tasks icl_wordseq1 --num_fewshot 5 --model_args pretrained=smollm2",
                "--heads L17H4 --pattern induction -- --tasks icl_sst2 --model_args pretrained=smollm2 --limit 8",
            ),
        ),
    },
}


def _shown(value: Any) -> Any:
    return ",".join(map(str, value)) if isinstance(value, tuple) else value


app = App(
    name=PROGRAM,
    help=f"{PROGRAM} COMMAND --help has all flags and examples.\n\nA command {ENDS}.",
    help_format="plaintext",
    help_formatter="plain",
    version_flags=(),
    default_parameter=Parameter(negative=(), show_default=_shown),
    console=Console(width=140, highlight=False),
    result_action="return_value",
)
for module, commands in COMMANDS.items():
    for command, (purpose, examples) in commands.items():
        lines = "\n".join(f"  {PROGRAM} {command} {example}" for example in examples)
        app.command(
            f"util.commands.{module}:{command}", help=purpose, help_epilogue=f"examples:\n{lines}", name=command
        )
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
    given = from_json(file.read_text(encoding="utf-8"), f"--config {file}")
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
    except MemoryError as error:  # Python's own has no message
        status, message = 1, str(error) or "this needs more memory than there is: ask for less"
    except KeyboardInterrupt:
        status, message = 130, "interrupted; what is in the cache is not measured again"
    print(message, file=sys.stderr)
    sys.exit(status)
