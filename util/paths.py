"""Where the suite reads and writes: the clone, the cached intermediates, the figures and values; hashes of files.

Files are written whole or not at all.

Four environment variables move these places. A relative value is relative to the clone, so that a notebook and a
terminal agree in whatever folder they run; without a clone, to the working folder.

    ICL_ROOT      the clone, for an installation that does not point into one
    ICL_MATERIAL  cached intermediates; default: experiment_material/ in the clone, without one the user's cache folder
    ICL_MODELS    models that come in packages; default: models/ under the cached intermediates
    ICL_OUTPUT    receives figures/, data/values/, data/cards/ and commands/; default: output/ under the cached
                  intermediates, so that a notebook run by hand leaves the committed figures alone. `make figures` sets
                  it to the clone.
"""

import hashlib
import os
import re
import sys
import uuid
from functools import lru_cache
from pathlib import Path, PurePath

from filelock import AcquireReturnProxy, FileLock, Timeout
from platformdirs import user_cache_path

UNFINISHED = ".unfinished-"  # how names of files begin that are being written
KINDS = {"figures": "figures", "values": "data/values", "cards": "data/cards", "commands": "commands"}


def root() -> Path:
    """The folder that holds data/: the clone, or the package itself where a wheel was installed.

    Raises FileNotFoundError if there is no data/ in it.
    """
    named, package = os.environ.get("ICL_ROOT"), Path(__file__).resolve().parent
    inside = package if (package / "data").is_dir() else package.parent
    folder = Path(named).expanduser().resolve() if named else inside
    if not (folder / "data").is_dir():
        origin = "ICL_ROOT names it" if named else "the package `util` is there"
        raise FileNotFoundError(
            f"no data/ in {folder} ({origin}). Run `pip install .` or `pip install -e .` in a clone of the suite, "
            "or set ICL_ROOT to the clone."
        )
    return folder


def clone() -> Path | None:
    """The clone; None where a wheel was installed."""
    return None if root() == Path(__file__).resolve().parent else root()


def material() -> Path:
    """The folder of cached intermediates; it need not exist yet."""
    folder = clone()
    return _named("ICL_MATERIAL") or (folder / "experiment_material" if folder else user_cache_path("icl-circuits"))


def models() -> Path:
    """The folder of models that come in packages; it need not exist yet."""
    return _named("ICL_MODELS") or material() / "models"


def output(kind: str, model: str = "embedded") -> Path:
    """The folder for a model's "figures", "values" or "cards", or for results of "commands"; created if missing.

    Files of the embedded model, and of no model, lie in the folder itself, those of any other model in a subfolder
    named after it. Raises OSError where the folder cannot be made.
    """
    place, below = _named("ICL_OUTPUT"), KINDS[kind]
    folder = (place / below if place else material() / "output" / kind) / model_folder(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot make {folder} ({error.strerror}): choose another folder with ICL_OUTPUT") from error
    return folder


def resolved(place: str | Path) -> Path:
    """The absolute path of a folder; that of a file by its own name, as the hub's cache links it to a digest."""
    path = Path(os.path.expanduser(place))  # that of a user whom there is not stays as it is
    return path.parent.resolve() / path.name if path.is_file() else path.resolve()


def model_folder(model: str) -> str:
    """The name of a model's subfolder of the output folder, "" for the embedded model.

    No two models share one: it is the model's name where that is plain, such as gpt2, else its last part in plain
    characters and a digest of all of it, for a path the absolute one.
    """
    name, place = model.rstrip("/"), os.path.expanduser(model)
    if name in ("embedded", "embedded/generalist"):
        return ""
    if os.path.isfile(place) or os.path.isfile(os.path.join(place, "config.json")):  # notebooks/smollm2 is no model
        name = str(resolved(place))
    plain = re.sub(r"[^a-z0-9._]+", "-", PurePath(name).name.lower())[:60].strip("-.") or "model"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return plain if plain == name else f"{plain}-{digest[:8]}"


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


def write_whole(file: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, and return it; one that is there is replaced."""
    unfinished = file.with_name(f"{UNFINISHED}{uuid.uuid4().hex}")  # another process may write the same file
    try:
        with unfinished.open("xb") as opened:
            opened.write(content.encode() if isinstance(content, str) else content)
            opened.flush()
            os.fsync(opened.fileno())
        return unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)


def _named(variable: str) -> Path | None:
    """The folder that an environment variable names; None if the variable is unset or empty."""
    value = os.environ.get(variable)
    if not value:
        return None
    folder = Path(value).expanduser()
    return folder if folder.is_absolute() else (clone() or Path.cwd()) / folder


def sha256(file: str | Path) -> str:
    """The sha256 of a file's bytes, in hex. A file is read again only if its size or one of its times has changed."""
    stat = Path(file).stat()
    return _sha256(str(file), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=256)
def _sha256(file: str, size: int, *times: int) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


if __name__ == "__main__":  # for the Makefile: where `make figures MODEL=...` writes
    print(model_folder(sys.argv[1]))
