"""Runs a sweep: `python -m workflow.sweep GRID.yaml`. It needs `pip install "icl-circuits-suite[workflow]"`.

It checks the grid, writes the plan, lets Snakemake run what is missing, and writes an index of all cells. A sweep that
was killed goes on when it is started again; jobs that failed do not stop the others, and run again the next time.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NoReturn

import yaml

from util import paths

HERE = Path(__file__).parent
LOCK = "sweep.lock"
INSTALL = 'snakemake is not installed here: pip install "icl-circuits-suite[workflow]", or `make sweep`'


def main(argv: Sequence[str] | None = None) -> None:
    """Run a sweep. Ends with 1 where an input has to be mended or jobs have failed, with 2 for wrong flags."""
    given = list(sys.argv[1:] if argv is None else argv)
    own, flags = (given[: given.index("--")], given[given.index("--") + 1 :]) if "--" in given else (given, [])
    arguments = _parser().parse_args(own)
    try:
        status = run(arguments.grid, arguments.profile, arguments.out, arguments.python, arguments.dry_run, flags)
    except (ValueError, OSError, ImportError) as error:
        _end(str(error))
    sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m workflow.sweep",
        description="Run what is missing of a grid of models x data sets x k x seeds x figures, and write an index.",
        epilog="What follows -- goes to snakemake as it is.",
    )
    parser.add_argument("grid", type=Path, metavar="GRID.yaml", help="see workflow/grid.py")
    parser.add_argument("--profile", type=Path, default=HERE / "profiles" / "local", help="where and how jobs run")
    parser.add_argument("--out", type=Path, help="receives everything; default: sweeps/<grid> in the cache")
    parser.add_argument("--python", default=sys.executable, help="runs the jobs (default: this one)")
    parser.add_argument("--dry-run", action="store_true", help="say which jobs would run, and stop")
    return parser


def run(
    grid: Path,
    profile: Path,
    out: Path | None = None,
    python: str = sys.executable,
    dry_run: bool = False,
    flags: Sequence[str] = (),
) -> int:
    """Run a sweep, and return the status that Snakemake ends with.

    Raises ImportError where there is no Snakemake, ValueError for a wrong grid, OSError where nothing can be written or
    the same sweep runs already.
    """
    if importlib.util.find_spec("snakemake") is None:
        raise ImportError(INSTALL)
    settings = _settings(profile)

    from workflow import grid as grids
    from workflow import pages, plan  # they import the whole package, which takes seconds

    swept = grids.read(grid)
    folder = (out or paths.material() / "sweeps" / grid.stem).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        _alone(lock, folder)
        here = settings.get("executor", "local") == "local"
        devices = _devices() if here else []
        planned = plan.write(swept, folder, python, devices)
        print(f"{len(planned['cells'])} cells, in {folder}", flush=True)
        asked = ["--dry-run"] if dry_run else []
        limits = [f"gpu={len(devices)}"] * bool(devices) + [f"mem_mb={_megabytes()}"] if here else []
        command = [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(HERE / "Snakefile"), "--directory", str(folder)),
            *("--profile", str(profile.resolve()), *asked, *(["--resources", *limits] if limits else []), *flags),
        ]
        if any((folder / ".snakemake" / "locks").glob("*")):  # of a run that was killed: this one holds our own lock
            subprocess.run([*command, "--unlock"], pass_fds=[lock.fileno()], check=True)
        status = _ended(subprocess.Popen(command, pass_fds=[lock.fileno()]))
        if not dry_run:
            rows = pages.write_index(folder)
            for line in pages.failure_lines(rows):
                print(line)
            print(f"{sum(row.state == 'done' for row in rows)} of {len(rows)} cells are done: {folder / pages.INDEX}")
    return status


def _settings(profile: Path) -> dict[str, object]:
    """The settings of a profile. Raises ValueError where there is none."""
    file = profile / "config.yaml"
    if not file.is_file():
        raise ValueError(f"{profile} is no profile: it has no config.yaml; see workflow/profiles")
    return yaml.safe_load(file.read_text(encoding="utf-8")) or {}


def _alone(lock: IO[str], folder: Path) -> None:
    """Lock the sweep, as long as this process or Snakemake lives. Raises OSError where another one has done so."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(f"this sweep runs already, in {folder}: wait for it, or choose another folder") from None
    except OSError as error:  # a shared file system without locks
        print(f"{folder} cannot be locked ({error.strerror}): do not run this sweep twice", file=sys.stderr)


def _devices() -> list[str]:
    """The GPUs of this machine, as CUDA_VISIBLE_DEVICES calls them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def _megabytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1_000_000


def _ended(snakemake: subprocess.Popen[bytes]) -> int:
    """The status that Snakemake ends with. Interrupted by Ctrl-C it ends its jobs, which is waited for."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal has sent it to Snakemake too
    signal.signal(signal.SIGTERM, lambda *_: snakemake.terminate())
    try:
        return snakemake.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(1)


if __name__ == "__main__":
    main()
