"""Runs a command on GPUs that no other job of this machine has: `gpus.py --devices 0 1 2 3 --count 2 -- COMMAND ...`.

A GPU is taken by locking a file of its own. The command takes the place of this process and keeps the locks, so that
they are free when it ends, however it ends. With --count 0 it sees no GPU. It is a script of its own, which starts at
once, because it runs before every job.
"""

import argparse
import fcntl
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PAUSE = 1.0  # seconds until GPUs are asked for again


def taken(devices: Sequence[str], count: int, folder: Path) -> list[str] | None:
    """As many GPUs as asked for, locked until this process and those it starts have ended; None if fewer are free."""
    opened: list[tuple[str, int]] = []
    for device in devices:
        if len(opened) == count:
            break
        file = os.open(folder / f"{device}.lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            opened.append((device, file))
    if len(opened) < count:
        for _, file in opened:
            os.close(file)
        return None
    for _, file in opened:
        os.set_inheritable(file, True)
    return [device for device, _ in opened]


def main(argv: Sequence[str] | None = None) -> None:
    """Wait until so many GPUs are free, and run the command on them. Ends with status 2 where there are too few."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", nargs="+", required=True, help="what CUDA_VISIBLE_DEVICES calls them")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args(argv)
    if arguments.count > len(arguments.devices):
        parser.error(f"{arguments.count} GPUs are asked for, and there are {len(arguments.devices)}")
    folder = Path(tempfile.gettempdir()) / f"icl-gpus-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    while (devices := taken(arguments.devices, arguments.count, folder)) is None:
        time.sleep(PAUSE)
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    os.execvp(arguments.command[0], arguments.command)


if __name__ == "__main__":
    main()
