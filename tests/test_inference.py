"""The reference code's entry points, called as its notebook calls them, on the embedded model."""

import copy

import StaICC
import torch
from StaICC.util import hgf_dataset_loader

from util import inference, load_model_and_data


def test_counts_through_the_doors_equal_those_of_eager_attention():
    bench = StaICC.Normal(4, datasets=[hgf_dataset_loader.financial_phrasebank])
    model, tokenizer = load_model_and_data.load_ICL_model(
        "embedded", huggingface_token=None, quantized=False, device="cpu"
    )
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    seen = 0
    for correct in (True, False):
        strings, queries = load_model_and_data.load_data_from_StaICC_experimentor(bench[0], "label_words", correct)
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
