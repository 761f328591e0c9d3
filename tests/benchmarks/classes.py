"""Every causal class of the installed transformers, tiny and random, against code that is independent of the engine.

The reference is the class's own eager attention on a model that the engine never saw: `output_attentions`, and edits in
the class's own eager function (or, for classes that have none, `tests/eager_runs.py`). Prompts have 8 tokens, and 24,
which is past every window, chunk and selection of keys of the tiny configs.

    python -m tests.benchmarks.classes [--only llama gpt2] [--out data/classes]

`make classes` writes data/classes/classes.json and data/classes/README.md.
"""

import argparse
import contextlib
import json
import sys
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import transformers
from torch import Tensor

from tests import eager_runs
from tests.device_runs import INSTRUMENTS, ids
from tests.fake_gpu.comparison import assert_alike
from tests.fake_gpu.fake_cuda import Devices, put, spread
from tests.tiny_models import KINDS, tiny_model
from util import paths
from util.engine.adapters import adapts
from util.engine.attention import instrument, support
from util.engine.batches import check_writing, logits_at
from util.engine.call import UnsupportedModel
from util.engine.components import known_blocks
from util.engine.handshake import check_length, prepare
from util.engine.instruments import CaptureHeads, CaptureRows, CaptureStates, Knockout, PatchHeads
from util.engine.replay import Edit, plan_of, replay

LENGTHS = (8, 24)  # tokens
BOUND = 1e-4  # of the largest number compared, in float32
NEW_TOKENS = 3
WIDELY = ("replay", "label scores", "means")  # what is tried on fake GPUs beside all instruments


@dataclass
class Outcome:
    """What came of a class.

    status: "exact", "partial", "refused", "wrong" or "not built"; reason: why it is refused or could not be built;
    missing: what is not available, in words; gpus: over how many fake ones it was spread, where it gave the numbers of
    the CPU; errors: by check, the largest difference over all lengths, as a share of the largest number; path: how maps
    of head patches are computed.
    """

    kind: str
    name: str
    status: str
    reason: str = ""
    missing: list[str] = field(default_factory=list)
    gpus: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    path: str = ""


# ------------------------------------------------------------------------------------------------ the reference


@contextlib.contextmanager
def edited(model, patch, cut):
    """The outputs of heads by layer, while the eager functions in the files of a model's classes make these edits."""
    classes = {type(module) for module in model.modules()} | set(type(model).__mro__)
    files = {sys.modules[base.__module__] for kind in classes for base in kind.__mro__}
    stock = {file: file.eager_attention_forward for file in files if hasattr(file, "eager_attention_forward")}
    z: dict[int, Tensor] = {}

    def editing(function):
        def attend(module, query, key, value, attention_mask, **options):
            layer = int(module.layer_idx)
            if cut and cut[0] == layer:
                attention_mask = attention_mask.clone()
                attention_mask[:, :, cut[1], cut[2]] = torch.finfo(query.dtype).min
            out, weights = function(module, query, key, value, attention_mask, **options)
            if patch and patch[0] == layer:
                out = out.clone()
                out[:, patch[1], patch[2]] = 0
            z[layer] = out
            return out, weights

        return attend

    for file, function in stock.items():
        file.eager_attention_forward = editing(function)  # type: ignore[attr-defined]
    try:
        yield z
    finally:
        for file, function in stock.items():
            file.eager_attention_forward = function  # type: ignore[attr-defined]


@torch.no_grad()
def reference(model, ids, patch=None, cut=None):
    """Logits [1, T, V], weights [1, H, T, S] and z [1, T, H, dv] by layer, of the class's own eager code with edits.

    patch: layer, token and head, whose z is 0 there; cut: layer, query and key, a cell that is closed for all heads.
    """
    inputs = {"input_ids": ids, "use_cache": False}
    if adapts(type(model)):
        z = eager_runs.run(model, inputs).z
        writes = {(patch[0], 0, *patch[1:]): torch.zeros(z[patch[0]].shape[-1])} if patch else {}
        cuts = {(cut[0], head, 0, *cut[1:]) for head in range(model.config.num_attention_heads)} if cut else set()
        run = eager_runs.run(model, inputs, writes, cuts)
        return run.logits, run.weights, run.z
    with edited(model, patch, cut) as z:
        out = model(**inputs, output_attentions=True)
    weights = [weight for weight in out.attentions if weight is not None]
    if len(weights) > len(z):  # layers without attention give something of their own
        weights = [weights[layer] for layer in sorted(z)]
    return out.logits, dict(zip(sorted(z), weights, strict=True)), z


# ------------------------------------------------------------------------------------------------ the comparison


def gap(ours, theirs):
    """The largest difference, as a share of the largest number (of 1 at least)."""
    if ours.shape != theirs.shape:
        return float("inf")
    return float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0))


@torch.no_grad()
def compared(ours, theirs, length):
    """How far a prepared model is from the reference at one length: logits, rows, outputs, values, edits."""
    prompt, mate = ids(1, length, length), ids(1, length, 99)
    layers = support(ours).layers
    layer = layers[len(layers) // 2]
    token, query, key = length - 3, length - 2, length - 4

    def logits(*instruments, ids=prompt):
        with instrument(ours, *instruments):
            return ours(ids, use_cache=False).logits

    found = logits(rows := CaptureRows(torch.arange(length)), z := CaptureHeads(), kept := CaptureStates())
    plain, weights, heads = reference(theirs, prompt)
    values = {
        at: kept.states[at][1].repeat_interleave(z.z[at].shape[2] // kept.states[at][1].shape[1], 1) for at in layers
    }
    read = {at: (rows.weights[at] @ values[at].float()).transpose(1, 2) for at in layers}
    if support(ours).scaled_outputs:  # eager gives the weights without what the sink takes
        weights = {at: weights[at] * rows.weights[at].sum(-1, keepdim=True) for at in layers}
    errors = {
        "logits": gap(found, plain),
        "rows": max(gap(rows.weights[at], weights[at]) for at in layers),
        "outputs": max(gap(z.z[at], heads[at]) for at in layers),
        "values": max(gap(read[at], heads[at]) for at in layers),
    }
    patched = logits(PatchHeads(layer, 1, 0.0, torch.tensor([token])))
    cut = Knockout(torch.tensor([[query, key]]), layer)
    errors["patch"] = gap(patched, reference(theirs, prompt, patch=(layer, token, 1))[0])
    errors["knockout"] = gap(logits(cut), reference(theirs, prompt, cut=(layer, query, key))[0])
    errors["batch"] = gap(logits(ids=torch.cat([prompt, mate]))[:1], plain)
    some = [query, length - 1]
    with logits_at(ours, torch.tensor(some)):
        errors["logits of some tokens"] = gap(logits(), plain[:, some])

    def instruments(place):
        at = [token - place.queries.start] if token in place.queries else []
        return [PatchHeads(layer, 1, 0.0, torch.tensor(at, dtype=torch.long), examples=place.examples)]

    answers = torch.tensor([[5, 7]])
    for first in (0, token):
        again, _ = replay(ours, prompt, [Edit(layer, instruments)], answers, first)
        errors[f"replay from {first and 'the end'}"] = gap(again[0], patched[:, -1].gather(1, answers))
    return errors


def outcome(kind, **changes):
    """What comes of one model type; changes: entries of its config."""
    try:
        ours, theirs = tiny_model(kind, **changes), tiny_model(kind, **changes)
        if adapts(type(theirs)):
            theirs = eager_runs.reference(theirs)
        else:
            theirs.set_attn_implementation("eager")
        ours(torch.arange(3, 11)[None])
    except Exception as error:  # noqa: BLE001  # whatever a class raises on a config that it was not made for
        return Outcome(kind, "", "not built", f"{type(error).__name__}: {first_line(str(error))}")
    found = Outcome(kind, type(ours).__name__, "exact")
    try:
        prepare(ours)
        check_length(ours, max(LENGTHS))
    except UnsupportedModel as error:
        found.status, found.reason = "refused", str(error)
        return found
    for length in LENGTHS:
        for check, error_ in compared(ours, theirs, length).items():
            found.errors[check] = max(found.errors.get(check, 0.0), error_)
    found.path = plan_of(ours, max(LENGTHS)).path
    if not all(error <= BOUND for error in found.errors.values()):
        found.status = "wrong"
    if any(module is None for module in support(ours).projections.values()):
        found.missing.append("what heads write (something stands between heads and the output projection)")
    elif known_blocks(ours) is None:
        found.missing.append("direct effects")
    if not support(ours).branches:
        found.missing.append("several continuations in one row (each runs alone)")
    try:
        check_writing(ours, LENGTHS, NEW_TOKENS)
    except UnsupportedModel as error:
        found.missing.append(f"continuations: {error}")
        if found.status == "exact":
            found.status = "partial"
    on_gpus(found, ours, **changes)
    return found


# ------------------------------------------------------------------------------------------------ fake GPUs


def on_gpus(found, on_cpu, **changes):
    """Note over how many fake GPUs a class can be spread and gives what it gives on the CPU; why not over two."""
    for count, what, place in ((2, "split over two GPUs", spread), (1, "a GPU", put)):
        try:
            with Devices():
                model = place(tiny_model(found.kind, **changes))
                prepare(model)
            assert_alike(model, on_cpu, [*INSTRUMENTS, *WIDELY])
        except Exception as error:  # noqa: BLE001  # the table says what it is
            found.missing.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}")
        else:
            found.gpus = count
            return


# ------------------------------------------------------------------------------------------------ the table

TITLES = {
    "exact": "Exact",
    "partial": "Exact, but not all there is",
    "refused": "Refused by name",
    "not built": "Cannot be built small here",
    "wrong": "Wrong",
}


def first_line(text, most=160):
    """The first line of a text, cut short, fit for a cell of a table."""
    line = text.strip().partition("\n")[0].replace("|", "/")
    return line if len(line) <= most else f"{line[: most - 3]}..."


def rows_of(outcomes):
    """The lines of a Markdown table."""
    lines = [
        "| model type | class | largest difference | fake GPUs | head patches by | not available, or why |",
        "|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        worst = f"{max(one.errors.values()):.0e}" if one.errors else ""
        why = "; ".join(first_line(part, 220) for part in [*one.missing, one.reason] if part)
        lines.append(f"| {one.kind} | {one.name} | {worst} | {one.gpus or ''} | {first_line(one.path, 60)} | {why} |")
    return lines


PAGE = f"""# Causal classes of transformers {{version}}

`make classes` builds each class tiny and random, and compares it with its own eager attention at
{LENGTHS[0]} tokens and at {LENGTHS[1]}, which is past every window, chunk and selection of keys: logits,
attention rows, outputs and values of heads, a patched head, a knocked out cell, a replayed patch, a prompt
beside another, logits of some tokens alone. Differences are shares of the largest number, in float32. Exact
is below {BOUND:.0e}. A real model is checked on loading all the same: its config may take another path.

Fake GPUs: over how many of them the class was spread, where instruments, replays, label scores and means
gave what they give on the CPU, and everything was on the device of its layer (`tests/fake_gpu`).

{{count}} model types: {{counts}}.
"""


def page(outcomes):
    """The table of all classes as a Markdown page."""
    chosen = {title: [one for one in outcomes if one.status == status] for status, title in TITLES.items()}
    counts = ", ".join(f"{len(those)} {title.lower()}" for title, those in chosen.items() if those)
    text = PAGE.format(version=transformers.__version__, count=len(outcomes), counts=counts)
    tables = ("\n".join(["", f"## {title}", "", *rows_of(those), ""]) for title, those in chosen.items() if those)
    return text + "".join(tables)


def main():
    """Write the table of all classes, or print the rows of some."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="MODEL_TYPE", help="print these alone")
    parser.add_argument("--out", type=Path, default=paths.root() / "data" / "classes")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    outcomes = []
    for kind in given.only or KINDS:
        outcomes.append(outcome(kind))
        print(f"{kind}: {outcomes[-1].status} {first_line(outcomes[-1].reason)}", flush=True)
    if given.only:
        print("\n".join(rows_of(outcomes)))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    for one in outcomes:
        one.errors = {name: float(f"{error:.1e}") for name, error in one.errors.items()}
    table = {"transformers": transformers.__version__, "tokens": LENGTHS, "bound": BOUND}
    table["classes"] = [asdict(one) for one in outcomes]
    (given.out / "classes.json").write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    (given.out / "README.md").write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
