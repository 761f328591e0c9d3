"""One process at a time: a lock on a file, and a word to whoever waits for it."""

import sys
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock, Timeout


def locked(file: Path, doing: str) -> AcquireReturnProxy:
    """Take the lock of a file, for a `with` block; it is kept in `<file>.lock`.

    Where another process holds it, this one says that it waits for "another process that <doing>", and waits.
    Raises OSError where the folder cannot be written to.
    """
    lock = FileLock(f"{file}.lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        print(f"waiting for another process that {doing}", file=sys.stderr, flush=True)
        return lock.acquire()
