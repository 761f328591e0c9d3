"""lm-evaluation-harness with the suite's model class beside its own, on the same requests.

    python -m tests.benchmarks.bench_harness [--rounds 9] [--shape embedded] [--save FILE]

It needs lm-evaluation-harness (`make bench-harness` brings it). Two models: the embedded one and SmolLM2 (float32, one
thread). Every contestant is a process of its own that runs once per round; the order within a round is drawn. Times are
CPU seconds; a ratio is the median over rounds with its bootstrap interval.

    harness    the harness's `HFLM`: log-likelihoods of both labels of 16 prompts of 10 demonstrations
    ours       the same with `InterventionLM`, nothing attached
    ablated    the same with eight heads at their mean
    knocked    the same with the induction pattern knocked out in eight heads, which is planned anew in each run
"""

from collections.abc import Callable
from typing import Any

from tests.benchmarks.referee import Team, comparison, serve
from tests.benchmarks.report import Line, command_line, finish, report_head

SHAPES = {"embedded": 16, "smollm2": 8}  # prompts
CONTESTANTS = ("harness", "ours", "ablated", "knocked")
HEADS = {"embedded": (1, 2), "smollm2": (10, 20)}  # two layers, in each of which four heads are edited

SETTING = "lm-evaluation-harness with interventions, ten demonstrations, batches of 8, fp32, one thread"
PLAIN = "the harness's own model class, CPU time"
LINES = tuple(
    line
    for shape, title in (("embedded", "embedded model"), ("smollm2", "SmolLM2"))
    for line in (
        Line(f"{title}: nothing attached / {PLAIN}", (shape, "ours / harness"), most=1.1),
        Line(f"{title}: eight heads at their mean / {PLAIN}", (shape, "ablated / harness"), most=1.25),
        Line(
            f"{title}: the induction pattern knocked out in eight heads / {PLAIN}",
            (shape, "knocked / harness"),
            most=1.25,
        ),
    )
)


def work(name: str, shape: str) -> Callable[[], Any]:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from util.extras.harness.interventions import Reference
    from util.extras.harness.model import InterventionLM
    from util.figures.induction_scores.edits import WHOLE, Edit
    from util.prompts import classification
    from util.records.model import Model

    source = Model(shape, device="cpu", verbose=False)
    prompts = classification.prompts(classification.task("wordseq1"), 10, limit=SHAPES[shape])
    requests = [
        Instance("loglikelihood", {}, (prompt.text, label), index, metadata=("icl_wordseq1", number, 1))
        for number, prompt in enumerate(prompts)
        for index, label in enumerate(prompt.labels)
    ]
    heads = [(layer, head) for layer in HEADS[shape] for head in range(4)]
    edits = {"ours": WHOLE, "ablated": Edit.ablate(heads), "knocked": Edit.knock_out(heads)}
    if name == "harness":
        model, tokenizer = source.pair
        model.set_attn_implementation("sdpa")
        lm: Any = HFLM(model, tokenizer=tokenizer, batch_size=8)
    else:
        lm = InterventionLM(
            source, edit=edits[name], reference=Reference(k=10, prompts=8, reference_prompts=8), batch_size=8
        )

    def run() -> list[float]:
        if name == "knocked":
            lm.intervention.forget()
        return [log_prob for log_prob, _ in lm.loglikelihood(requests, disable_tqdm=True)]

    return run


def times(shape: str, count: int) -> dict[str, Any]:
    """CPU seconds, and their ratios to the harness's own class."""
    seconds = Team("bench_harness", {"shape": shape}).seconds(CONTESTANTS, count, shape)
    return comparison(seconds, [(name, "harness") for name in CONTESTANTS[1:]])


def main() -> None:
    parser = command_line(__doc__, 9, CONTESTANTS)
    parser.add_argument("--shape", choices=list(SHAPES), help="one model alone")
    options = parser.parse_args()
    if options.contestant:
        return serve(work(options.contestant, options.shape))
    report = report_head(options.rounds)
    for shape in [options.shape] if options.shape else SHAPES:
        report[shape] = times(shape, options.rounds)
    return finish(report, LINES, options.save)


if __name__ == "__main__":
    main()
