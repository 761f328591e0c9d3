"""What all commands share: which there are, their help, flags from a JSON file, and how errors end a run.

A command is a module of this room with `add_arguments(parser)` and `run(arguments)`. Its line in COMMANDS has what help
texts say, so that only the module of the command that is asked for is imported.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

PROGRAM = "python -m util"


@dataclass(frozen=True)
class Command:
    """One command: its name, what it does, and examples of its arguments, the plainest first.

    takes_config: whether its flags may stand in a JSON file.
    """

    name: str
    help: str
    examples: tuple[str, ...]
    takes_config: bool = True

    @property
    def lines(self) -> list[str]:
        """The examples, as one would type them."""
        return [f"{PROGRAM} {self.name} {example}".rstrip() for example in self.examples]


COMMANDS = (
    Command(
        "card",
        "which circuits of in-context learning a model has, on one page",
        ("smollm2", "smollm2 --size small --out card", "gpt2-large --seed 1", "embedded --untrained 0"),
    ),
    Command(
        "atlas",
        "cards side by side: how many heads of each role, how deep, and which serve IOI too",
        ("data/cards data/cards/smollm2", "cards/gpt2 cards/pythia-160m --out atlas"),
        takes_config=False,
    ),
    Command(
        "scores",
        "prefix-matching scores of all heads, and their companions, on repeated random tokens",
        (
            "smollm2",
            "smollm2 --sequences 20 --seed 100 --copying --out scores",
            "meta-llama/Meta-Llama-3-8B --revision main --dtype bfloat16",
        ),
    ),
    Command(
        "means",
        "mean outputs of heads, or what heads make of their mean input, measured once for all of `ablate`",
        ("smollm2", "smollm2 --mode mean,input_mean --reference mnli --reference-prompts 500"),
    ),
    Command(
        "ablate",
        "classification tasks with some heads replaced by their mean, beside the whole model and random heads",
        (
            "smollm2 --task wordseq1 --top 0.01 --controls 10",
            "smollm2 --task repetition,recursion --k 5 --seed 42,43,44 --heads L17H4,5.1 --mode zero",
            "smollm2 --top 0.01 --random 42",
            "smollm2 --mode input_mean --reference mnli",
        ),
    ),
    Command(
        "knockout",
        "classification tasks with the induction pattern forbidden to some heads",
        (
            "smollm2 --task wordseq1 --top 0.01 --controls 3",
            "smollm2 --heads heads.json --pattern previous-part --out knocked-out",
        ),
    ),
    Command(
        "evaluate",
        "lm-evaluation-harness on a model with heads ablated or their pattern knocked out",
        (
            "--top 0.01 --mode mean -- --tasks icl_wordseq1 --num_fewshot 5 --model_args pretrained=smollm2",
            "--heads L17H4 --pattern induction -- --tasks icl_sst2 --output_path out --model_args pretrained=smollm2",
        ),
        takes_config=False,
    ),
    Command(
        "forerunner",
        "on how many prompts each head reads the token before a label (forerunner token heads)",
        ("smollm2 --dataset trec --k 4 --prompts 64", "smollm2 --dataset 2 --threshold 5 --untrained"),
    ),
    Command(
        "ioi",
        "what each head carries in indirect object identification, by patching it",
        ("smollm2 --prompts 32", "gpt2-large --corruption abc --prompts 128 --seed 1 --out ioi"),
    ),
    Command("edges", "edge ablation between token types, from JSON", ("--examples", "CONFIG.json"), takes_config=False),
    Command(
        "claims",
        "verdicts on the papers' claims (hours; goes on where it stopped)",
        ("embedded --prompts 100", "smollm2 --text-tasks"),
        takes_config=False,
    ),
    Command(
        "draw",
        "stored figures again, from their values alone",
        ("smollm2", "embedded --figure toy_induction_head --width 3.3 --out pictures"),
        takes_config=False,
    ),
    Command(
        "replication",
        "two runs' values: what held and what moved",
        ("data/values experiment_material/replications/embedded-1/data/values",),
        takes_config=False,
    ),
)
BY_NAME = {command.name: command for command in COMMANDS}
ENDS = "ends with 0; with 1 and one message where an input has to be mended; with 2 where a flag is wrong"


def overview() -> str:
    """Returns all commands, each with an example."""
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"usage: {PROGRAM} COMMAND ...", ""]
    for command in COMMANDS:
        lines += [f"{command.name:{width}}  {command.help}", f"{'':{width}}      {command.lines[0]}"]
    return "\n".join([*lines, "", f"{PROGRAM} COMMAND --help has all flags and more examples. A command {ENDS}.", ""])


def parser_of(command: Command) -> argparse.ArgumentParser:
    """Returns the parser of one command, with its flags; imports its module."""
    examples = "".join(f"  {line}\n" for line in command.lines)
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {command.name}",
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        epilog=f"examples:\n{examples}\nIt {ENDS}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module = importlib.import_module(f"util.commands.{command.name}")
    module.add_arguments(parser)
    if command.takes_config:
        about = 'a JSON object of flags by their names, such as {"model": "smollm2", "prompts": 8}; others win'
        parser.add_argument("--config", metavar="FILE.json", help=about)
    parser.set_defaults(run=module.run)
    return parser


def parsed(command: Command, argv: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments of a command, those of its --config included; ends the process for wrong ones."""
    parser = parser_of(command)
    if not command.takes_config:
        return parser.parse_args(argv)
    before = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    before.add_argument("--config")
    file = before.parse_known_args(argv)[0].config
    flags = [] if file is None else _flags(parser, file)
    arguments, unknown = parser.parse_known_args([*flags, *argv])
    if wrong := [flag.removeprefix("--").partition("=")[0] for flag in unknown if flag in flags]:
        parser.error(f"{file}: there is no flag {', '.join(wrong)}; --help lists them")
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def _flags(parser: argparse.ArgumentParser, file: str) -> list[str]:
    """The flags that a JSON file stands for. Its model becomes the default of the parser."""
    try:
        given = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        parser.error(f"--config {file} cannot be read: {error}")
    if not isinstance(given, dict):
        parser.error(f"--config {file}: {given!r:.60} is no object of flags")
    if "model" in given:
        parser.set_defaults(model=str(given.pop("model")))
    return [flag for name, value in given.items() for flag in _flag(name, value)]


def _flag(name: str, value: Any) -> list[str]:
    """One entry of a JSON file as a flag; none for null and false."""
    option = f"--{name.replace('_', '-')}"
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    plain = isinstance(value, list) and not any(isinstance(entry, list | dict) for entry in value)
    text = ",".join(map(str, value)) if plain else value if isinstance(value, str) else json.dumps(value)
    return [f"{option}={text}"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command. Ends the process with status 1 and a message for what a user can mend, 2 for wrong flags.

    Ends it with 141 and no message, as other programs do, where nobody reads its output any more (`| head -1`).
    """
    try:
        try:
            _run(argv)
        finally:
            sys.stdout.flush()  # what is still buffered may have no reader either
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the interpreter, which flushes again
        sys.exit(141)


def _run(argv: Sequence[str] | None) -> None:
    """Run one command, and end the process where it cannot."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] in ("-h", "--help"):
        print(overview(), end="")
        return
    if given[0] not in BY_NAME:
        _end(2, f"there is no command {given[0]!r}; there are {', '.join(BY_NAME)}")
    try:
        arguments = parsed(BY_NAME[given[0]], given[1:])
        arguments.run(arguments)
    except BrokenPipeError:
        raise
    except (
        ValueError,
        OSError,
        ImportError,
        FloatingPointError,
    ) as error:  # what a user can mend; its message says how
        _end(1, str(error))
    except MemoryError as error:  # Python's own has no message
        _end(1, str(error) or "this needs more memory than there is: ask for less")
    except KeyboardInterrupt:
        _end(130, "interrupted; what is in the cache is not measured again")


def _end(status: int, message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(status)
