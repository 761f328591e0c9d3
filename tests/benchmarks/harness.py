"""lm-evaluation-harness with the suite's model class beside its own: log-likelihoods of both labels of each prompt.

Prompts have ten demonstrations, in batches of eight.

    HFLM              the harness's own class
    nothing attached  `InterventionLM`
    heads at mean     the same with eight heads at their mean
    knocked out       the same with the induction pattern knocked out in eight heads, which is planned anew in each run
"""

from functools import partial
from typing import Any

from tests.benchmarks.referee import HARNESS, TIME, Bar, Contest


def likelihoods(model, prompts, layers, name):
    """layers: four heads of each are edited."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from util.extras.harness.model import InterventionLM
    from util.figures.edits import INTACT, Edit
    from util.prompts import classification
    from util.study.model import Model

    source = Model(model, device="cpu", verbose=False)
    drawn = classification.prompts(classification.task("wordseq1"), 10, limit=prompts)
    requests = [
        Instance("loglikelihood", {}, (prompt.text, label), index, metadata=("icl_wordseq1", number, 1))
        for number, prompt in enumerate(drawn)
        for index, label in enumerate(prompt.labels)
    ]
    heads = [(layer, head) for layer in layers for head in range(4)]
    edits = {"nothing attached": INTACT, "heads at mean": Edit.ablate(heads), "knocked out": Edit.knock_out(heads)}
    if name == "HFLM":
        whole, tokenizer = source.pair
        whole.set_attn_implementation("sdpa")
        lm: Any = HFLM(whole, tokenizer=tokenizer, batch_size=8)
    else:
        reference = {"k": 10, "prompts": 8, "reference_prompts": 8}
        lm = InterventionLM(source, edit=edits[name], reference=reference, batch_size=8)

    def run():
        if name == "knocked out":
            lm.intervention.cells.clear()
        return [log_prob for log_prob, _ in lm.loglikelihood(requests, disable_tqdm=True)]

    return run


EDITED = {"nothing attached": 1.1, "heads at mean": 1.25, "knocked out": 1.25}  # times the harness's own
CONTESTANTS = {name: partial(likelihoods, name=name) for name in ("HFLM", *EDITED)}
CONTESTS = {
    title: Contest(
        CONTESTANTS,
        [Bar(TIME, name, "HFLM", most=most) for name, most in EDITED.items()],
        {"model": model, "prompts": prompts, "layers": layers},
        {"model": "embedded", "prompts": 2, "layers": [1, 2]},
        same=(("HFLM", "nothing attached"),),
        pythons=dict.fromkeys(CONTESTANTS, HARNESS),
    )
    for title, model, prompts, layers in (
        ("embedded model", "embedded", 16, [1, 2]),
        ("SmolLM2", "smollm2", 8, [10, 20]),
    )
}
