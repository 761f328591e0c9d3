"""Exports every record of `make figures` as plain files, which no code of the suite is needed to read.

    python -m tests.golden.make MODEL [FIGURE ...] [--commit COMMIT] [--out FOLDER]

The notebooks of a commit run in a worktree of it, one after the other, each on one thread, on a cache of their own in
FOLDER; what an earlier call has finished is not run again. COMMIT is a hash or a name in tests/golden/README.md;
without it the working tree runs. Then FOLDER/<commit>/<model> has records/, with <digest>.npz (arrays, by their path in
the record) and <digest>.json (request and all else) for each record, the digest being that of the request, and values/.
"""

import argparse
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load

ROOT = Path(__file__).resolve().parents[2]
README = Path(__file__).with_name("README.md")


def digest(request: Any) -> str:
    """16 hex digits of the sha256 of a request's JSON with sorted keys."""
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]


def record(file: Path) -> dict[str, Any]:
    """The parts of a record file: request, provenance and data, its arrays as NumPy's."""
    content = pickle.loads(file.read_bytes())  # noqa: S301
    if content.startswith(b"icl record 1\n"):  # until the store of `util.study`
        return earlier_record(content)
    found = load(content)
    text = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["record"]
    return json.loads(text, object_hook=lambda made: found[made["$array"]] if list(made) == ["$array"] else made)


def earlier_record(content: bytes) -> dict[str, Any]:
    """The parts of a record as JSON in a line, and the numbers of its arrays after it."""
    _, _, line, numbers = content.split(b"\n", 3)
    place = 0

    def array(pairs: list[tuple[str, Any]]) -> Any:
        nonlocal place
        made = dict(pairs)
        if list(made) != ["$array"]:
            return made
        dtype, shape = made["$array"]
        place, start = place + prod(shape) * np.dtype(dtype).itemsize, place
        return np.frombuffer(numbers, dtype, prod(shape), start).reshape(shape)

    return json.loads(line, object_pairs_hook=array)


def arrays(data: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every array of a record's data with its path, such as "effects/value"."""
    if isinstance(data, np.ndarray):
        yield path, data
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from arrays(value, f"{path}/{key}".lstrip("/"))


def export(material: Path, out: Path) -> int:
    """Writes every record of a folder to `out`; returns how many."""
    files = sorted(material.glob("*.pickle"))  # blocks are joined in them
    for file in files:
        parts = record(file)
        place = out / digest(parts["request"])
        np.savez(place.with_suffix(".npz"), **dict(arrays(parts["data"])))
        text = json.dumps(parts, indent=1, default=lambda array: f"array {array.dtype.str} {list(array.shape)}")
        place.with_suffix(".json").write_text(text, encoding="utf-8")
    return len(files)


def worktree(commit: str, folder: Path) -> Path:
    """A worktree of a commit, made on first use; the clone itself for an empty commit."""
    if not commit:
        return ROOT
    tree = folder / "tree"
    if not tree.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], cwd=ROOT, check=True)
    return tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("figures", nargs="*", help="stems, such as ioi_patching; default all")
    parser.add_argument("--commit", default="", help="a hash, or a name in README.md; default the working tree")
    parser.add_argument("--out", type=Path, default=ROOT / "experiment_material" / "golden")
    given = parser.parse_args()
    named = re.search(rf"`{re.escape(given.commit)}`: `(\w+)`", README.read_text(encoding="utf-8"))
    folder = given.out.resolve() / (given.commit or "here")
    tree, place = worktree(named[1] if named else given.commit, folder), folder / given.model
    material, output = place / "material", place / "output"
    environment = os.environ | {
        "PYTHONPATH": str(tree), "ICL_ROOT": str(tree), "ICL_MATERIAL": str(material), "ICL_OUTPUT": str(output),
        "ICL_MODELS": os.environ.get("ICL_MODELS", str(ROOT / "experiment_material" / "models")),
        "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1",
    }  # fmt: skip
    for notebook in sorted((tree / "notebooks").glob("*.ipynb")):
        if given.figures and notebook.stem.partition("_")[2] not in given.figures:
            continue
        done = place / "executed" / notebook.name
        if done.exists():
            continue
        done.parent.mkdir(parents=True, exist_ok=True)
        running = done.with_name(f"running-{done.name}")
        command = [sys.executable, "-m", "papermill", "--kernel", "python3", "--cwd", "notebooks", "--no-progress-bar"]
        command += ["-r", "model_name", given.model, str(notebook), str(running)]
        subprocess.run(command, cwd=tree, env=environment, check=True)
        running.rename(done)
    (place / "records").mkdir(parents=True, exist_ok=True)
    print(f"{export(material, place / 'records')} records in {place / 'records'}")
    shutil.copytree(output / "data" / "values", place / "values", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
