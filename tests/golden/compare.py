"""Compares two exports of `tests.golden.make`, or one with what the repository keeps of it.

    python -m tests.golden.compare BEFORE [AFTER] [--rtol 1e-6]
    python -m tests.golden.compare --keep BEFORE

BEFORE and AFTER are folders such as experiment_material/golden/embedded. Arrays of the same request, and
values of the same key, have to be equal bit for bit; with --rtol, as on another kind of CPU, up to that share of the
largest number of an array. Without AFTER every array of tests/golden/<model>.json has to be somewhere in the export,
whatever its record is called; with --rtol the small arrays of the embedded model are compared by request. --keep adds
to the digests, so that figures can be made one by one, and writes the small arrays anew. The exit code is 1 where
something differs.
"""

import argparse
import json
import sys
from collections import defaultdict
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SMALL = 16_384  # bytes of an array that the repository keeps as it is
FEW = 20  # records of each part that it keeps so
Arrays = dict[str, dict[str, np.ndarray]]


def records(folder):
    """The arrays of each record of an export, by the digest of its request."""
    return {file.stem: dict(np.load(file)) for file in sorted((folder / "records").glob("*.npz"))}


def small(folder, found):
    """The small arrays of a few records of each part."""
    parts: dict[Any, list[str]] = defaultdict(list)
    for name in found:
        request = json.loads((folder / "records" / f"{name}.json").read_text(encoding="utf-8"))["request"]
        parts[request["measure"]].append(name)
    few = [name for names in parts.values() for name in names[:FEW]]
    return {f"{name}/{path}": a for name in few for path, a in found[name].items() if a.nbytes <= SMALL}


def digests(arrays):
    """What identifies each array: dtype, shape and sha256 of its bytes."""
    return {name: f"{a.dtype.str} {list(a.shape)} {sha256(a.tobytes()).hexdigest()}" for name, a in arrays.items()}


def flat(value, path=""):
    """Everything that is no dictionary and no list, with its path."""
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(entry, f"{path}/{key}")
    else:
        yield path, value


def same(first, second, rtol):
    """Whether two arrays, numbers or texts are equal: bit for bit, or up to a share of the largest number."""
    one, other = np.asarray(first), np.asarray(second)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if rtol and one.dtype.kind == "f":
        largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
        return bool(np.allclose(one, other, rtol=0, atol=rtol * largest, equal_nan=True))
    return one.tobytes() == other.tobytes() if one.dtype != object else first == second


def compared(first, second, rtol, what):
    """Prints how many entries are equal, and each that differs or is in one alone; returns whether all shared agree."""
    before, after = dict(flat(first)), dict(flat(second))
    shared = before.keys() & after.keys()
    unequal = sorted(key for key in shared if not same(before[key], after[key], rtol))
    print(f"{what}: {len(shared) - len(unequal)} of {len(shared)} equal; only before: "
          f"{len(before.keys() - shared)}, only after: {len(after.keys() - shared)}")  # fmt: skip
    for key in unequal:
        print(f"  differs: {key}")
    return not unequal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--rtol", type=float, default=0.0)
    parser.add_argument("--keep", action="store_true")
    given = parser.parse_args()
    first, kept = records(given.before), HERE / f"{given.before.name}.json"
    identified = {name: digests(arrays) for name, arrays in first.items()}
    if given.keep:
        earlier = json.loads(kept.read_text()) if kept.exists() else {}
        kept.write_text(json.dumps(earlier | identified, indent=0, sort_keys=True) + "\n")
        if given.before.name == "embedded":
            np.savez_compressed(HERE / "embedded.npz", **small(given.before, first))
        return
    if given.after is None and given.rtol:
        now = {f"{name}/{path}": array for name, arrays in first.items() for path, array in arrays.items()}
        good = compared(dict(np.load(kept.with_suffix(".npz"))), now, given.rtol, "small arrays")
    elif given.after is None:
        then, there = dict(flat(json.loads(kept.read_text()))), {text for _, text in flat(identified)}
        lost = [path for path, text in then.items() if text not in there]
        print(f"{len(lost)} of {len(then)} arrays are lost", *lost, sep="\n  ")
        good = not lost
    else:
        good = compared(first, records(given.after), given.rtol, "arrays")
        for file in sorted((given.before / "values").rglob("*.json")):
            twin = given.after / "values" / file.relative_to(given.before / "values")
            if twin.exists():
                before, after = (json.loads(place.read_text()) for place in (file, twin))
                good &= compared(before, after, given.rtol, file.name)
    sys.exit(not good)


if __name__ == "__main__":
    main()
