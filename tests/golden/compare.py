"""Compares two exports of `tests.golden.make`, or one with what the repository keeps of it.

    python -m tests.golden.compare BEFORE [AFTER] [--rtol 1e-6]
    python -m tests.golden.compare --keep BEFORE
    python -m tests.golden.compare --content BEFORE AFTER

BEFORE and AFTER are folders such as experiment_material/golden/v0.2-full/embedded. Arrays of the same request, and
values of the same key, have to be equal bit for bit; with --rtol, as on another kind of CPU, up to that share of the
largest number of an array. Without AFTER the digests of tests/golden/<model>.json are compared, or, with --rtol, the
small arrays that the repository keeps of the embedded model. --keep adds to the digests, so that figures can be made
one by one, and writes the small arrays anew. --content compares arrays whatever their records are called, after a
figure has moved to another form: each of BEFORE has to be somewhere in AFTER. The exit code is 1 where
something differs.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
SMALL = 16_384  # bytes of an array that the repository keeps as it is
FEW = 20  # records of each part that it keeps so


def records(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of each record of an export, by the digest of its request."""
    return {file.stem: dict(np.load(file)) for file in sorted((folder / "records").glob("*.npz"))}


def small(folder: Path, found: dict[str, dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The small arrays of a few records of each part."""
    parts: dict[tuple[str, str], list[str]] = {}
    for name in found:
        request = json.loads((folder / "records" / f"{name}.json").read_text(encoding="utf-8"))["request"]
        part = (request["measure"], "") if "measure" in request else (request["stem"], request.get("part", ""))
        parts.setdefault(part, []).append(name)
    few = [name for names in parts.values() for name in names[:FEW]]
    return {f"{name}/{path}": a for name in few for path, a in found[name].items() if a.nbytes <= SMALL}


def digests(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """What identifies each array: dtype, shape and sha256 of its bytes."""
    return {
        path: f"{array.dtype.str} {list(array.shape)} {sha256(array.tobytes()).hexdigest()}"
        for path, array in arrays.items()
    }


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, text and null of a values file, with its path."""
    if isinstance(value, dict | list):
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(entry, f"{path}/{key}")
    else:
        yield path, value


def same(first: Any, second: Any, rtol: float) -> bool:
    """Whether two arrays, numbers or texts are equal: bit for bit, or up to a share of the largest number."""
    one, other = np.asarray(first), np.asarray(second)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if rtol and one.dtype.kind == "f":
        largest = float(np.abs(one[np.isfinite(one)]).max(initial=0.0))
        return bool(np.allclose(one, other, rtol=0, atol=rtol * largest, equal_nan=True))
    return one.tobytes() == other.tobytes() if one.dtype != object else first == second


def compared(before: dict[str, Any], after: dict[str, Any], rtol: float, what: str) -> bool:
    """Prints how many entries are equal, and each that differs or is in one alone; returns whether all shared agree."""
    shared = before.keys() & after.keys()
    unequal = sorted(key for key in shared if not same(before[key], after[key], rtol))
    print(f"{what}: {len(shared) - len(unequal)} of {len(shared)} equal; only before: "
          f"{len(before.keys() - shared)}, only after: {len(after.keys() - shared)}")  # fmt: skip
    for key in unequal:
        print(f"  differs: {key}")
    return not unequal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--rtol", type=float, default=0.0)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--content", action="store_true")
    given = parser.parse_args()
    first, kept = records(given.before), HERE / f"{given.before.name}.json"
    if given.keep:
        earlier = json.loads(kept.read_text()) if kept.exists() else {}
        found = {name: digests(arrays) for name, arrays in first.items()}
        kept.write_text(json.dumps(earlier | found, indent=0, sort_keys=True) + "\n")
        if given.before.name == "embedded":
            np.savez_compressed(HERE / "embedded.npz", **small(given.before, first))
        return
    if given.content:
        there = {text for arrays in records(given.after).values() for text in digests(arrays).values()}
        lost = [f"{name}/{path}" for name, a in first.items() for path, text in digests(a).items() if text not in there]
        print(f"{len(lost)} of {sum(map(len, first.values()))} arrays are lost", *lost, sep="\n  ")
        sys.exit(bool(lost))
    flat = {f"{name}/{path}": array for name, arrays in first.items() for path, array in arrays.items()}
    if given.after is None and given.rtol:
        sys.exit(not compared(dict(np.load(kept.with_suffix(".npz"))), flat, given.rtol, "small arrays"))
    if given.after is None:
        stored = json.loads(kept.read_text())
        now = {f"{name}/{path}": text for name, arrays in first.items() for path, text in digests(arrays).items()}
        then = {f"{name}/{path}": text for name, arrays in stored.items() for path, text in arrays.items()}
        sys.exit(not compared(then, now, 0.0, "arrays"))
    other = {f"{name}/{path}": array for name, arrays in records(given.after).items() for path, array in arrays.items()}
    good = compared(flat, other, given.rtol, "arrays")
    for file in sorted((given.before / "values").rglob("*.json")):
        twin = given.after / "values" / file.relative_to(given.before / "values")
        if twin.exists():
            one, two = (dict(numbers(json.loads(place.read_text(encoding="utf-8")))) for place in (file, twin))
            good &= compared(one, two, given.rtol, file.name)
    sys.exit(not good)


if __name__ == "__main__":
    main()
