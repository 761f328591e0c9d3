"""Pages to read of a model's figures, values and claims, see `util.report`."""

import argparse
from pathlib import Path

from util import paths
from util.records.exports import check_folder
from util.report import pages
from util.report.content import Sources


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command to a parser."""
    parser.add_argument("model", nargs="+", help="embedded, smollm2, or what else figures were made of")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="receives the pages; default: report/ in the cache")
    parser.add_argument(
        "--stored", type=Path, metavar="FOLDER", help="has figures/ and data/values/; default: the clone"
    )
    about = "has the notebooks that `make figures` executed; default: executed/ in the cache"
    parser.add_argument("--executed", type=Path, metavar="FOLDER", help=about)
    parser.add_argument("--api", action="store_true", help="write pages of the package's docstrings as well")


def run(arguments: argparse.Namespace) -> None:
    """Write the pages and print where they are. Raises what `pages.write` raises."""
    out = arguments.out or paths.material() / "report"
    check_folder(out, "out")
    executed = arguments.executed or paths.material() / "executed"
    sources = Sources(arguments.stored or paths.root(), executed, paths.material())
    if arguments.api:
        from util.report import api  # imports the whole package

        api.write(out / "api")
    for model in arguments.model:
        written = pages.write(model, out, sources)
        print(*written.missing, sep="\n", end="\n" if written.missing else "")
        print(f"{written.report} ({written.report.stat().st_size / 1e6:.1f} MB), {len(written.notebooks)} notebooks")
    print(out / "index.html")
