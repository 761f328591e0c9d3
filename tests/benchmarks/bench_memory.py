"""What `util.engine.memory` says a run will take, beside what it takes: peak resident memory above that of the imports.

    python tests/benchmarks/bench_memory.py [--save data/benchmarks/memory_cpu.json]

Three random models in fp32 on the CPU, one thread, each in a process of its own: loaded from a folder, then
`copy_magnitudes` on 32 prompts of 256 tokens with two label conditions and 32 control rows. The estimate is made from
the configuration alone. A ratio is the estimate divided by the measurement, of the whole (to lie within 0.7 and 1.3)
and of what is not weights. The latter measurement differs from run to run: it has what the allocator keeps for later.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
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
    imported = _status("VmRSS")
    model, _ = load_model_and_data.load_ICL_model(folder, device="cpu", verbose=False)
    tokens = {
        c: [LabelledTokens((*row[:-2], row[-2 + c]), (LENGTH - 2,), (LENGTH - 1,), (1,), LENGTH) for row in ids]
        for c in (0, 1)
    }
    run = magnitudes.LabelRun(tokens, rows, list(range(PROMPTS)), [[0, 1]] * PROMPTS)
    magnitudes.copy_magnitudes(model, run, control_tokens=CONTROLS)
    peak = _status("VmHWM")
    print(json.dumps([said.total, sum(said.weights.values()), peak - imported]))


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def ratios(folder: str | Path, shape: str | None = None) -> dict[str, float]:
    """The estimate beside the measurement for the model in a folder, or for one of SHAPES, first made there."""
    environment = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    for step in ["make", "measure"] if shape else ["measure"]:
        command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
        command += ["--shape", shape] if shape else []
        done = subprocess.run(command, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True)
    said, weights, peak = json.loads(done.stdout.splitlines()[-1])
    return {
        "estimate, MiB": said / 2**20,
        "measured, MiB": peak / 2**20,
        "estimate / measured": said / peak,
        "estimate / measured, without the weights": (said - weights) / (peak - weights),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--step", choices=("make", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--shape", choices=SHAPES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "make":
        return make(options.shape, options.folder)
    if options.step == "measure":
        return measure(options.folder)

    import torch
    import transformers

    report: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, one thread per process",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    for shape in SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            report[shape] = ratios(folder, shape)
        print(shape, {name: round(value, 2) for name, value in report[shape].items()}, flush=True)
    if options.save:
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
