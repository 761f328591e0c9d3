"""The circuit card of a model, see `util.card`."""

import argparse
import shlex
from pathlib import Path

from util import paths
from util.card import page
from util.card.measure import SIZES, card
from util.commands.arguments import add_model, model_of
from util.study.exports import check_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    add_model(parser)
    about = "how many prompts are measured (default: full)"
    parser.add_argument("--size", choices=SIZES, default="full", help=about)
    parser.add_argument("--seed", type=int, default=0, help="of all prompts")
    about = "of the model's untrained twin with fresh weights from this seed: what a card says of nothing"
    parser.add_argument("--untrained", type=int, metavar="SEED", help=about)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="receives card.html and card.json")
    parser.add_argument("--redo", action="store_true", help="measure again what is cached")


def run(arguments: argparse.Namespace) -> None:
    """Measure the card and write the page. Raises ValueError for what there is not."""
    model = model_of(arguments)
    if arguments.untrained is not None:
        model = model.twin(arguments.untrained)
    twin = "" if arguments.untrained is None else f"untrained-{arguments.untrained}"
    out = arguments.out or paths.output("cards", arguments.model) / twin
    check_folder(out, "out")
    made = card(model, arguments.size, arguments.seed, redo=arguments.redo)
    for topic, said in made["sentences"].items():
        print(f"{topic}:", *said)
    print(*page.write(made, out, command_of(arguments)), sep="\n")


def command_of(arguments: argparse.Namespace) -> str:
    """Returns the command that makes the card, without the folder of this machine."""
    model = Path(arguments.model).name if Path(arguments.model).exists() else arguments.model
    twin = [] if arguments.untrained is None else [f"--untrained {arguments.untrained}"]
    flags = twin + [f"--size {arguments.size}"] + [f"--seed {arguments.seed}"] * bool(arguments.seed)
    for name in ("revision", "dtype"):
        value = getattr(arguments, name)
        if value not in (None, "auto"):
            flags.append(f"--{name} {shlex.quote(value)}")
    flags += ["--quantized"] * arguments.quantized
    return " ".join(["python -m util card", shlex.quote(model), *flags])
