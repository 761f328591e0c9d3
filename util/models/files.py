"""Hashes of files."""

import hashlib
from functools import lru_cache
from pathlib import Path


def sha256(file: str | Path) -> str:
    """The sha256 of a file's bytes, in hex. A file is read again only if its size or one of its times has changed."""
    stat = Path(file).stat()
    return _sha256(str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=256)
def _sha256(file: str, size: int, *times: int) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
