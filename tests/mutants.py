"""Seeded faults in the code: how many of them do the tests find?

    .venv/bin/pip install coverage
    .venv/bin/python -m tests.mutants FOLDER [--count 200] [--tree OTHER_CHECKOUT] [--rooms stats] [--tests tests/stats]

A mutant is a copy of the tree in which one sign, index, mask or axis is another one (`variants`). It is killed if a
test fails or hangs: of those that pass over its line in their own process, whatever their tier, the quickest first,
then of all others in their files. FOLDER keeps which tests these are (`lines.json`, from one traced run of all of
them) and the outcomes (`mutants.jsonl`); a second call goes on there.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from copy import deepcopy
from pathlib import Path

AXES = ("dim", "axis", "keepdim", "keepdims")
ROOMS = ("engine", "edges", "scores", "roles", "stats")
SIGNS = [(ast.Add, ast.Sub), (ast.Mult, ast.Div)]
MASKS = [(ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.And, ast.Or), (ast.BitAnd, ast.BitOr)]
OTHER: dict[type, tuple[str, type]] = {
    old: (kind, new)
    for kind, pairs in (("sign", SIGNS), ("mask", MASKS))
    for one, two in pairs
    for old, new in ((one, two), (two, one))
}
HERE = Path(__file__).resolve().parents[1]


def variants(node):
    """What a node can be changed into: pairs of the kind and the other node."""
    operator = node.ops[0] if isinstance(node, ast.Compare) else getattr(node, "op", None)
    if type(operator) in OTHER:
        (kind, new), copy = OTHER[type(operator)], deepcopy(node)
        if isinstance(copy, ast.Compare):
            copy.ops[0] = new()
        else:
            copy.op = new()
        yield kind, copy
    if isinstance(node, ast.UnaryOp):
        yield ("sign" if isinstance(operator, ast.USub) else "mask"), node.operand
    if isinstance(node, ast.Subscript):
        for place, part in enumerate(ast.walk(node.slice)):
            if isinstance(part, ast.Constant) and type(part.value) is int:
                copy = deepcopy(node)
                vars([*ast.walk(copy.slice)][place])["value"] += 1
                yield "index", copy
    if isinstance(node, ast.keyword) and node.arg in AXES and isinstance(node.value, ast.Constant | ast.UnaryOp):
        value = ast.literal_eval(node.value)
        yield "axis", ast.keyword(node.arg, ast.Constant(not value if isinstance(value, bool) else -(value == 0)))


class Changes(ast.NodeTransformer):
    """Visits every change that can be made, and makes one of them."""

    def __init__(self, wanted=None):
        self.wanted, self.found = wanted, []

    def visit(self, node):
        line = node.value.lineno if isinstance(node, ast.keyword) else getattr(node, "lineno", 0)
        for kind, other in variants(node):
            self.found.append((kind, line))
            if len(self.found) - 1 == self.wanted:
                return other
        annotations = {name: vars(node).pop(name) for name in ("returns", "annotation") if name in vars(node)}
        self.generic_visit(node)
        vars(node).update(annotations)
        return node


def sites(tree, rooms):
    """Every mutant there can be: (file, number of the change in it, its kind, its line)."""
    for file in sorted(file for room in rooms for file in (tree / "util" / room).glob("*.py")):
        (changes := Changes()).visit(ast.parse(file.read_text()))
        for number, (kind, line) in enumerate(changes.found):
            yield file.relative_to(tree).as_posix(), number, kind, line


def run(tree, arguments, *, limit=None, **more):
    """Runs pytest in a tree; the exit status, -1 after `limit` seconds."""
    environment = os.environ | {"PYTHONPATH": str(tree), "ICL_ROOT": str(tree), "OMP_NUM_THREADS": "1"} | more
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    try:
        return subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=limit).returncode
    except subprocess.TimeoutExpired:
        return -1


TRACE = """
import coverage, json, os, pytest, time

def pytest_configure(config):
    config.traced = coverage.Coverage(data_file=None, include=["*/util/*"]), {}
    config.traced[0].start()

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    start = time.perf_counter()
    item.config.traced[0].switch_context(item.nodeid)
    outcome = yield
    item.config.traced[1][item.nodeid] = time.perf_counter() - start
    return outcome

def pytest_unconfigure(config):
    traced, seconds = config.traced
    traced.stop()
    data, lines = traced.get_data(), {}
    for file in data.measured_files():
        tests = data.contexts_by_lineno(file)
        lines[os.path.relpath(file)] = {line: [test for test in tests[line] if test] for line in tests}
    with open(os.environ["TRACED"], "w") as out:
        json.dump({"seconds": seconds, "lines": lines}, out)
"""


def traced(tree, folder, tests):
    """Which tests pass over which line, and how long each takes, from a run of all tests of all tiers."""
    file = folder / "lines.json"
    if not file.exists():
        (folder / "trace.py").write_text(TRACE)
        run(tree, ["-p", "trace", "-p", "no:xdist", *tests], PYTHONPATH=f"{tree}:{folder}", TRACED=str(file))
    return json.loads(file.read_text())


def judged(tree, site, known):
    """Runs the tests of a mutant: how many pass over its line, whether one fails, and the seconds that took."""
    file, number, _, line = site
    seconds, original, start = known["seconds"], (tree / file).read_text(), time.perf_counter()
    tests = sorted(known["lines"].get(file, {}).get(str(line), []), key=seconds.get)
    mutant = ast.fix_missing_locations(Changes(number).visit(ast.parse(original)))
    (tree / file).write_text(ast.unparse(mutant))
    limit = 300 + 5 * sum(map(seconds.get, tests))
    runs = [tests, sorted({test.partition("::")[0] for test in tests})]  # others may judge what a shared set-up made
    killed = any(run(tree, ["-x", *names], limit=limit) for names in runs if names)
    (tree / file).write_text(original)
    return {"tests": len(tests), "killed": killed, "seconds": time.perf_counter() - start}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tree", type=Path, default=HERE)
    parser.add_argument("--rooms", nargs="+", default=ROOMS)
    parser.add_argument("--tests", nargs="+", default=["tests"])
    given = parser.parse_args()
    folder, copy = given.folder.resolve(), given.folder.resolve() / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    skipped = shutil.ignore_patterns(".git", ".venv*", "experiment_material", "__pycache__")
    shutil.copytree(given.tree, copy, ignore=skipped)
    known, out, done = traced(copy, folder, given.tests), folder / "mutants.jsonl", {}
    if out.exists():
        done = {tuple(entry["site"]): entry for entry in map(json.loads, out.read_text().splitlines())}
    every = [*sites(copy, given.rooms)]
    for site in random.Random(given.seed).sample(every, min(given.count, len(every))):
        if site not in done:
            done[site] = {"site": site, **judged(copy, site, known)}
            with out.open("a") as lines:
                lines.write(json.dumps(done[site]) + "\n")
    outcomes = Counter((site[0].split("/")[1], site[2], entry["killed"]) for site, entry in done.items())
    for room, kind in sorted({key[:2] for key in outcomes}):
        killed, survived = outcomes[room, kind, True], outcomes[room, kind, False]
        print(f"{room:8}{kind:6} {killed} of {killed + survived}")
    print(f"killed: {sum(entry['killed'] for entry in done.values())} of {len(done)}")


if __name__ == "__main__":
    main()
