"""What `util.engine.memory` says a run will take, beside what it takes: peak resident memory above that of the imports.

    python -m tests.benchmarks.bench_memory [--rounds 1] [--save data/benchmarks/memory_cpu.json]

Three random models in fp32 on the CPU, one thread, each in a process of its own: loaded from a folder, then
`copy_magnitudes` on 32 prompts of 256 tokens with two label conditions and 32 control rows. The estimate is made from
the configuration alone. A ratio is the estimate divided by the measurement, of the whole (to lie within 0.7 and 1.3)
and of what is not weights. The latter measurement differs from run to run: it has what the allocator
keeps for later. Numbers are medians over rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.referee import ROOT, status
from tests.benchmarks.report import Line, command_line, finish, report_head

PROMPTS, LENGTH, CONTROLS = 32, 256, 32
LLAMA = {"vocab_size": 32000, "max_position_embeddings": 2048}
SHAPES: dict[str, tuple[str, dict[str, int]]] = {
    "Llama, 8 layers, width 512": (
        "llama",
        {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 16, "intermediate_size": 1376} | LLAMA,
    ),
    "GPT-2 small": ("gpt2", {}),
    "Llama, 2 layers, width 2048, 4 key-value heads": (
        "llama",
        {"hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16, "intermediate_size": 8192}
        | {"num_key_value_heads": 4}
        | LLAMA,
    ),
}
SETTING = "what a run takes of memory, fp32, 32 prompts of 256 tokens, one thread"
LINES = tuple(
    Line(f"{shape}: estimate / measured", (shape, "estimate / measured"), least=0.7, most=1.3) for shape in SHAPES
)


def make(shape: str, folder: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from util.load_model_and_data import load_ICL_model

    kind, options = SHAPES[shape]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **options)).save_pretrained(folder)
    load_ICL_model("embedded", device="cpu", verbose=False)[1].save_pretrained(folder)


def measure(folder: str) -> None:
    """Print the estimate, the weights in it, and the peak above that of the imports: bytes, as JSON."""
    import torch
    from transformers import AutoConfig

    from util import load_model_and_data
    from util.engine import batches, memory
    from util.figures.forerunner_heads import magnitudes
    from util.prompts.prompt import LabelledTokens

    ids = torch.randint(32000, (PROMPTS, LENGTH + 1), generator=torch.Generator().manual_seed(1)).tolist()
    rows = [batches.Row(tuple(row[:-2]), tuple(row[-2:])) for row in ids]
    lengths = [len(row) for row in rows]
    said = memory.estimate(AutoConfig.from_pretrained(folder), lengths, captured=CONTROLS + 2, kept=1, device_map="cpu")
    imported = status("VmRSS")
    model, _ = load_model_and_data.load_ICL_model(folder, device="cpu", verbose=False)
    tokens = {
        c: [LabelledTokens((*row[:-2], row[-2 + c]), (LENGTH - 2,), (LENGTH - 1,), (1,), LENGTH) for row in ids]
        for c in (0, 1)
    }
    run = magnitudes.LabelRun(tokens, rows, list(range(PROMPTS)), [[0, 1]] * PROMPTS)
    magnitudes.copy_magnitudes(model, run, control_tokens=CONTROLS)
    peak = status("VmHWM")
    print(json.dumps([said.total, sum(said.weights.values()), peak - imported]))


def ratios(folder: str | Path, shape: str | None = None) -> dict[str, float]:
    """The estimate beside the measurement for the model in a folder, or for one of SHAPES, first made there."""
    environment = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}
    for step in ["make", "measure"] if shape else ["measure"]:
        command = [sys.executable, "-m", "tests.benchmarks.bench_memory", "--step", step, "--folder", str(folder)]
        command += ["--shape", shape] if shape else []
        variables = os.environ | environment
        done = subprocess.run(command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True)
    said, weights, peak = json.loads(done.stdout.splitlines()[-1])
    return {
        "estimate, MiB": said / 2**20,
        "measured, MiB": peak / 2**20,
        "estimate / measured": said / peak,
        "estimate / measured, without the weights": (said - weights) / (peak - weights),
    }


def measured(shape: str, count: int) -> dict[str, float]:
    """The report's part on one model: the median of so many rounds."""
    repeats = []
    for _ in range(count):
        with tempfile.TemporaryDirectory() as folder:
            repeats.append(ratios(folder, shape))
    return {name: float(np.median([repeat[name] for repeat in repeats])) for name in repeats[0]}


def main() -> None:
    parser = command_line(__doc__, 1)
    parser.add_argument("--step", choices=("make", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=SHAPES, help="one model alone")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "make":
        return make(options.shape, options.folder)
    if options.step == "measure":
        return measure(options.folder)
    report = report_head(options.rounds)
    for shape in [options.shape] if options.shape else SHAPES:
        report[shape] = measured(shape, options.rounds)
        print(shape, {name: round(value, 2) for name, value in report[shape].items()}, flush=True)
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
