"""Exports every record of `make figures` as plain files, which no code of the suite is needed to read.

    python -m tests.golden.make MODEL [FIGURE ...] [--out FOLDER]

The notebooks run one after the other, each on one thread, on a cache of their own in FOLDER; what an earlier call has
finished is not run again. Then FOLDER/<model> has records/, with <digest>.npz (arrays, by their path in the record) and
<digest>.json (request and all else) for each record, the digest being that of the request, and values/. For an earlier
commit, run it in a worktree of that commit.
"""

import argparse
import json
import os
import pickle
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from tests.golden.compare import flat

ROOT = Path(__file__).resolve().parents[2]


def digest(request):
    """16 hex digits of the sha256 of a request's JSON with sorted keys."""
    return sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:16]


def record(file):
    """The parts of a record file: request, provenance and data, its arrays as NumPy's."""
    content = pickle.loads(file.read_bytes())  # noqa: S301
    found = load(content)
    text = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["record"]
    return json.loads(text, object_hook=lambda made: found[made["$array"]] if list(made) == ["$array"] else made)


def export(material, out):
    """Writes every record of a folder to `out`; returns how many."""
    files = sorted(material.glob("*.pickle"))  # blocks are joined in them
    for file in files:
        parts = record(file)
        place = out / digest(parts["request"])
        leaves = {path.lstrip("/"): leaf for path, leaf in flat(parts["data"]) if isinstance(leaf, np.ndarray)}
        np.savez(place.with_suffix(".npz"), **leaves)
        text = json.dumps(parts, indent=1, default=lambda array: f"array {array.dtype.str} {list(array.shape)}")
        place.with_suffix(".json").write_text(text, encoding="utf-8")
    return len(files)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("figures", nargs="*", help="stems, such as ioi_patching; default all")
    parser.add_argument("--out", type=Path, default=ROOT / "experiment_material" / "golden")
    given = parser.parse_args()
    place = given.out.resolve() / given.model
    material, output = place / "material", place / "output"
    environment = os.environ | {
        "ICL_MATERIAL": str(material), "ICL_OUTPUT": str(output), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "ICL_MODELS": os.environ.get("ICL_MODELS", str(ROOT / "experiment_material" / "models")), "TQDM_DISABLE": "1",
    }  # fmt: skip
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if given.figures and notebook.stem.partition("_")[2] not in given.figures:
            continue
        done = place / "executed" / notebook.name
        if done.exists():
            continue
        done.parent.mkdir(parents=True, exist_ok=True)
        running = done.with_name(f"running-{done.name}")
        command = [sys.executable, "-m", "papermill", "--kernel", "python3", "--cwd", "notebooks", "--no-progress-bar"]
        command += ["-r", "model_name", given.model, str(notebook), str(running)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
        running.rename(done)
    (place / "records").mkdir(parents=True, exist_ok=True)
    print(f"{export(material, place / 'records')} records in {place / 'records'}")
    shutil.copytree(output / "data" / "values", place / "values", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
