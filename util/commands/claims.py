"""The papers' claims with more queries than the notebooks ask, into the figures' values files."""

from __future__ import annotations

from util import paths
from util.commands.arguments import Asked

PROMPTS = {"induction_scores": 200, "edge_ablation": 250, "forerunner_heads": 128}
CONTROL_SETS = 20


def run(asked: Asked = Asked(), *, prompts: int | None = None) -> None:
    """Measure the claims of notebooks 01, 02 and 04, print the verdicts, and write all into the values files.

    Args:
        prompts: of each task, each with a query of its own; default: induction_scores 200, edge_ablation 250,
            forerunner_heads 128
    """
    from util.figures.edge_ablation import more_queries
    from util.figures.forerunner_heads.more_prompts import copying
    from util.figures.induction_scores import claims as induction_claims
    from util.show import files
    from util.stats.verdicts import Verdicts
    from util.study.study import Study

    paths.output("values", asked.model)  # where nothing can be written is known before hours of work
    model, counts = asked.source, PROMPTS if prompts is None else dict.fromkeys(PROMPTS, prompts)
    induction = Study(
        "induction_scores",
        model,
        prompts=counts["induction_scores"],
        control_sets=CONTROL_SETS,
        other_sets=CONTROL_SETS,
        shots=(0, 10),
        untrained_control=False,
    )
    edges = Study("edge_ablation", model, prompts=counts["edge_ablation"], untrained_control=False)
    labels = Study("forerunner_heads", model, k=4, untrained_control=False)
    for stem, measure in {
        "induction_scores": lambda: induction_claims.stored(model.title, induction.arrays("shots"), induction.settings),
        "edge_ablation": lambda: more_queries.claims(edges),
        "forerunner_heads": lambda: copying(labels, counts["forerunner_heads"]),
    }.items():
        found = measure()
        if found["claims"]:
            print(Verdicts(found["claims"]).table().to_string())
        print(files.save_claims(found, stem, asked.model))
