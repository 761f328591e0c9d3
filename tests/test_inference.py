"""The reference code's entry points, called as its notebook calls them, on the embedded model."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.prompts.test_prompts import phrasebank
from util import inference, load_model_and_data


def test_counts_through_the_doors_equal_those_of_eager_attention():
    theirs = phrasebank(4)
    model, tokenizer = load_model_and_data.load_ICL_model(
        "embedded", huggingface_token=None, quantized=False, device="cpu"
    )
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    seen = 0
    for correct in (True, False):
        strings, queries = load_model_and_data.load_data_from_StaICC_experimentor(theirs, "label_words", correct)
        assert len(strings) == len(queries) == 512
        stored = inference.step2_get_fl_feature_and_lastftol_attention(model, tokenizer, strings[:12])
        for sample, text in enumerate(strings[:12]):
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                out = eager(ids, output_attentions=True, output_hidden_states=True)
            cut = 5 / ids.shape[1]
            for layer, weights in enumerate(out.attentions):
                got = inference.get_copy_magnitude_for_single_layer(stored[1], sample, layer)
                assert [m > cut for m in got] == [float(m) > cut for m in weights[0, :, -1, -2]]
                seen += sum(m > cut for m in got)
            for layer, states in enumerate(out.hidden_states):
                torch.testing.assert_close(stored[0][sample][layer], states[0, -2:], atol=1e-4, rtol=1e-4)
    assert seen >= 24  # at least one head counts on every prompt


@pytest.mark.slow
def test_the_reference_notebook_runs_as_it_stands_in_a_clone(tmp_path):
    """Its eleven cells with another model, device and fewer prompts. All that they save is git-ignored.

    Source: Cho et al. 2025.
    """
    tests = Path(__file__).parent
    for name in ("util", "data"):
        shutil.copytree(tests.parent / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.pickle"))
    shutil.copy(tests.parent / ".gitignore", tmp_path)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "clone"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    code = (tests / "reference_cells.txt").read_text(encoding="utf-8")
    assert "\n# Cell 4\n" in code
    code = code.replace("\n# Cell 4\n", "\nprompts, queries = prompts[:16], queries[:16]\n# Cell 4\n")
    plain = {key: value for key, value in os.environ.items() if key not in ("ICL_ROOT", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=plain | {"MPLBACKEND": "Agg"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    files = (tmp_path / "data").glob("*.pickle")
    made = {file.name: pickle.loads(file.read_bytes()) for file in files}  # noqa: S301
    heads, layers = made["embedded,copy_magnitude,headstat,4,3.pickle"], made["embedded,copy_magnitude,4,3.pickle"]
    assert [len(row) for row in heads] == [8] * 4 and max(map(max, heads)) <= 16 and len(layers) == 2
    assert sum(layers[1]) * 16 == sum(map(sum, heads)) > 0
    assert (tmp_path / "experiment_matrial" / "embedded,,copy_Hidd_att,4,3.pickle").is_file()
    status = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert status.stdout == ""
