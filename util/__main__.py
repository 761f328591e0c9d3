"""Command line: `python -m util edges CONFIG.json` runs edge ablation, `--examples` prints configs to start from;
`python -m util claims MODEL` measures the verdicts on the claims about edges; `python -m util replication FIRST SECOND`
compares the values of two runs.
"""

import argparse
import json
import re
import textwrap
from dataclasses import asdict, replace
from pathlib import Path

from util import paths
from util.figures import FIGURES, report
from util.figures.edge_ablation import claims_study, configs
from util.figures.edge_ablation.study import Study
from util.figures.replication import Replication
from util.records.model import Model


def _edges(arguments: argparse.Namespace) -> None:
    if arguments.examples:
        print(json.dumps([asdict(config) for config in configs.examples()], indent=1))
        return
    runs = configs.load(arguments.file)
    models: dict[str, Model] = {}  # by request: configs of one model share it
    for number, config in enumerate(runs, 1):
        asked = replace(config.study.model, device=arguments.device)
        model = models.setdefault(json.dumps(asked.request), asked)
        print(f"[{number}/{len(runs)}] {config.action}: {model.request['model']}, {config.study.task}")
        result = configs.run(config, model, overwrite=arguments.overwrite)
        for name, row in result["results"].items():
            values = ("{} {:.3f} [{:.3f}, {:.3f}]".format(measure, *interval) for measure, interval in row.items())
            print(f"  {name:28}", "  ".join(values))


def _claims(arguments: argparse.Namespace) -> None:
    model = Model(
        arguments.model,
        arguments.revision,
        arguments.dtype,
        arguments.quantized,
        device=arguments.device,
    )
    primary = Study(model, arguments.primary, prompts=arguments.prompts, donor_seeds=arguments.donors)
    study = claims_study.ClaimsStudy(primary, arguments.tasks, search_prompts=arguments.search_prompts)
    paths.output("values", arguments.model)  # where nothing can be written is known before hours of work
    measured = study.measure()
    print(measured.verdicts.table().to_string())
    print(report.save_values(measured.values(), study.stem, arguments.model))


def _prose(file: Path) -> str:
    """What a file says: of a notebook its Markdown cells, numbers with a leading 0."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return re.sub(r"(?<![\d.])\.(?=\d)", "0.", text)


def _replication(arguments: argparse.Namespace) -> None:
    shared = [stem for stem in (*FIGURES, "edge_claims") if (arguments.second / f"{stem}.json").exists()]
    if not shared:
        raise ValueError(f"second = {arguments.second}: there is no values file of a figure")
    text = "\n".join(map(_prose, arguments.texts))
    for stem in shared:
        first, second = (
            json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
            for folder in (arguments.first, arguments.second)
        )
        found = Replication.of(stem, first, second)
        print(*found.lines(), sep="\n")
        for title, pairs in {"quoted": found.quoted(text), "moved most": found.moved[: arguments.most]}.items():
            if pairs:
                print(f"  {title}:\n{textwrap.indent(found.table(pairs).to_string(), '    ')}")


def main() -> None:
    """Parse the arguments and run one command."""
    parser = argparse.ArgumentParser(prog="python -m util", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("edges", help="edge ablation from JSON")
    command.add_argument("file", nargs="?", help="one config, or a list of them")
    command.add_argument("--examples", action="store_true", help="print a small config of each action")
    command.add_argument("--device", default="auto")
    command.add_argument("--overwrite", action="store_true", help="measure again, and replace what is in out_dir")
    command.set_defaults(run=_edges)
    command = commands.add_parser("claims", help="verdicts on the claims about edges (hours; goes on where it stopped)")
    command.add_argument("model", help="embedded, a hub id, a folder, ...")
    command.add_argument("--prompts", type=int, default=250, help="of each task, each with a query of its own")
    command.add_argument("--tasks", nargs="+", default=list(claims_study.TASKS), choices=claims_study.TASKS)
    command.add_argument("--primary", default="capitalization", choices=claims_study.TASKS, help="of claims 1 and 5")
    command.add_argument("--search-prompts", type=int, default=64, help="that claim 1's circuit is searched on")
    command.add_argument("--donors", nargs="+", type=int, default=[0, 1, 2], help="seeds of corrupted prompts")
    command.add_argument("--device", default="auto")
    command.add_argument("--revision")
    command.add_argument("--dtype", default="auto")
    command.add_argument("--quantized", action="store_true")
    command.set_defaults(run=_claims)
    command = commands.add_parser("replication", help="two runs' values: what held and what moved")
    command.add_argument("first", type=Path, help="a folder of values files, such as data/values")
    command.add_argument("second", type=Path, help="the same figures, measured on other prompts")
    command.add_argument("--most", type=int, default=10, help="how many of the numbers that moved are listed")
    command.add_argument("--texts", nargs="*", type=Path, default=[], help="files whose quoted numbers are listed")
    command.set_defaults(run=_replication)
    arguments = parser.parse_args()
    if arguments.command == "edges" and arguments.file is None and not arguments.examples:
        parser.error("name a file of configs, or ask for --examples")
    try:
        arguments.run(arguments)
    except (ValueError, OSError, MemoryError) as error:  # what a user can mend; its message says how
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
