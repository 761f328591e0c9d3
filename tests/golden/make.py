"""Exports every record of `make figures` as plain files, which no code of the suite is needed to read.

    ICL_MATERIAL=MATERIAL make figures MODEL=...
    python -m tests.golden.make MATERIAL VALUES experiment_material/golden/<model>

MATERIAL is a folder that was empty, so that every record in it is one of the figures; VALUES has the model's values.
The last folder then has records/, with <digest>.npz (arrays, by their path in the record) and <digest>.json (request
and all else) for each record, the digest being that of the request, and values/. For an earlier commit, run it in a
worktree of that commit.
"""

import argparse
import json
import pickle
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from tests.golden.compare import flat


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
    parser.add_argument("material", type=Path)
    parser.add_argument("values", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    (given.out / "records").mkdir(parents=True, exist_ok=True)
    print(f"{export(given.material, given.out / 'records')} records in {given.out / 'records'}")
    shutil.copytree(given.values, given.out / "values", dirs_exist_ok=True)


if __name__ == "__main__":
    main()
