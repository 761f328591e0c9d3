"""What is measured of heads and of edges: `scores`, `forerunner`, `ioi`, `roles`, `edges`, `look`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from util import paths
from util.commands.arguments import AtLeastTwo, Heads, Int, ModelFlags, Numbers, Out, Words, by_head, made, write
from util.figures.edits import PAPER_SHARES, how_many
from util.figures.forerunner_heads.numbers import SHARE, THRESHOLD
from util.figures.ioi_patching.numbers import intervals
from util.figures.ioi_patching.show import EXAMPLE, NAMES, heads_table, patching_says, predictions_say
from util.prompts.induction_pattern import EXCLUDE
from util.prompts.ioi import Corruption
from util.show import files
from util.stats.heads import head_name, heads_where, top
from util.stats.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from util.roles.sequences_study import HeadScores, SequenceStudy

BEST = 10  # heads in the printed table


def scores(
    model: ModelFlags = ModelFlags(),
    *,
    length: Int = 50,
    copies: Int = 4,
    sequences: AtLeastTwo = 5,
    seed: Int = 0,
    no_bos: bool = False,
    frequent_exclude: float = EXCLUDE,
    figure: bool = False,
    out: Out = Out(),
) -> None:
    """Score all heads. Raises ValueError, before anything is loaded, for numbers out of range.

    Args:
        length: tokens that are repeated
        copies: how often they come
        sequences: how many are drawn, at least 2
        seed: of the first sequence; the others have the next ones
        no_bos: no BOS in front
        frequent_exclude: the share of the most frequent tokens, and of the least frequent ones, that are never drawn
        figure: also scores.png and .pdf, the mean and the standard deviation of the sequences by head
    """
    from util.roles.sequences_study import SequenceStudy

    study = SequenceStudy(
        model.source, length, copies, sequences, seed,
        bos=not no_bos, frequent_exclude=frequent_exclude, redo=out.redo,
    )  # fmt: skip
    folder, request = out.checked("scores", study, studies=[study.request])
    heads = study.scores()
    score = heads.mean()
    maps = {name: heads.intervals(name) for name in heads.scores}
    best = top(score, min(BEST, score.size))
    columns = {name: [of_map[head] for head in best] for name, of_map in maps.items()}
    table = pd.DataFrame(columns, index=[head_name(head) for head in best])
    shares = {str(part): top(score, how_many(part, score.size)) for part in PAPER_SHARES}
    results = {"scores": maps, "uniform": heads.uniform, "best": shares}
    write(folder, request, results, by_head(maps), table, [study])
    if figure:
        print(*files.write_figure(_scores_picture(study, heads), folder / "scores"), sep="\n")


def _scores_picture(study: SequenceStudy, heads: HeadScores) -> Figure:
    """Maps [L, H] of the mean and of the standard deviation of prefix-matching scores over sequences."""
    from util.show import panels
    from util.show.draw import Grid, draw

    score = heads.mean()
    spread = heads.scores["prefix_matching"].std(0, ddof=1)
    best = top(score, 1)[0]
    maps = [
        partial(panels.heads, values=score, limits=(0, 1), title="mean", bar=""),
        partial(panels.heads, values=spread, limits=(0, spread.max() or 1), title="standard deviation", bar=""),
    ]
    sequences = f"{study.sequences} sequences: {study.length} random tokens, {study.copies} times"
    title = f"{head_name(best)} has the highest prefix-matching score, {score[best]:.2f}"
    return draw(Grid(maps, least=2.2, height=1.8), title, f"{study.model.title}, {sequences}")


def forerunner(
    model: ModelFlags = ModelFlags(),
    *,
    dataset: str = "financial_phrasebank",
    k: Int = 4,
    prompts: Int = 512,
    seed: Int = 0,
    threshold: float = THRESHOLD,
    untrained: bool = False,
    figure: bool = False,
    out: Out = Out(),
) -> None:
    """Count heads behind correct labels, wrong labels and another word. Raises ValueError for an unknown name.

    Args:
        dataset: of StaICC, by name or number; a wrong one lists all
        k: demonstrations
        prompts: the first ones of 512, at least 4
        seed: 0: StaICC's own demonstrations
        threshold: the c in c / n_t, which a magnitude has to exceed
        untrained: also the untrained twin, on 64 prompts at most
        figure: also counts.png and .pdf, on how many prompts each head reads the label's forerunner
    """
    from util.show.part import drawn
    from util.study.study import Study

    study = Study(
        "forerunner_heads", model.source, redo=out.redo,
        dataset=dataset, k=k, prompts=prompts, seed=seed, threshold=threshold, untrained_control=untrained,
    )  # fmt: skip
    folder, request = out.checked("forerunner", study, studies=[study.request])
    values, rows = study.numbers("counts") | study.numbers("paper_layers"), []
    for series, reading in study.arrays("counts").items():
        magnitude = reading["magnitude"].mean(axis=0, dtype=np.float64)
        lines = by_head({"count": values["counts"][series], "magnitude": magnitude})
        rows.append(lines.assign(series=series, prompts=values["prompts"][series]))
    columns = ("prompts", "frequent_heads", "heads_on_a_prompt")
    table = pd.DataFrame({name.replace("_", " "): values[name] for name in columns})
    for series, counts in values["counts"].items():
        often = heads_where(np.array(counts) >= SHARE * values["prompts"][series])
        print(f"{series}: {', '.join(map(head_name, often)) or 'no head'}")
    write(folder, request, values, pd.concat(rows), table, [study])
    if figure and (picture := drawn(study.figure.parts["counts"], study.values_of("counts"))):
        print(*files.write_figure(picture, folder / "counts"), sep="\n")


def ioi(
    model: ModelFlags = ModelFlags(),
    *,
    corruption: Corruption = "s2_swap",
    prompts: Int = 128,
    seed: Int = 0,
    base: str = EXAMPLE[0],
    source: str = EXAMPLE[1],
    names: Words = NAMES,
    out: Out = Out(),
) -> None:
    """Patch every head, on one pair of prompts and on many. Raises ValueError for texts that do not go together.

    Args:
        corruption: how a source differs from its base
        prompts: pairs that are drawn, at least 8
        seed: of the pairs
        base: of one pair of your own
        source: its source
        names: the answer of that base, and the name that it repeats
    """
    from util.study.study import Study

    study = Study(
        "ioi_patching", model.source, redo=out.redo, untrained_control=False,
        corruption=corruption, prompts=prompts, seed=seed, texts=(base, source), names=names,
    )  # fmt: skip
    folder, request = out.checked("ioi", study, studies=[study.request])
    values = study.values_of("p1", "population")
    print(*[*predictions_say(values)][2:], *patching_says(values), sep="\n")
    print(f"Below, shares of the effect, means of {prompts} generated pairs:")
    population, example = values["population"], values["example"]
    rows = by_head({
        **{name: intervals(population[name]) for name in ("noised", "denoised")},
        "direct": population["direct"],
        **{f"example {name}": values[name] for name in ("patched", "permuted")}, "example norm": example["norms"],
    })  # fmt: skip
    pair = {name: values[name] for name in ("scores", "permuted", "patched", "selectivity")}
    write(folder, request, {"population": population, "example": pair}, rows, heads_table(values), [study])


def roles(model: ModelFlags = ModelFlags(), *, heads: Heads | None = None, seed: Int = 0, out: Out = Out()) -> None:
    """Test heads for nine roles. Raises ValueError for heads that the model has not.

    Args:
        heads: such as L5H1,L11H3: in every role; default: those that have one
        seed: of all prompts
    """
    from util.engine.handshake import prepare
    from util.figures.role_atlas.measure import kinds
    from util.figures.role_atlas.numbers import HAS, of_heads, with_role
    from util.roles.effects import heads_by_layer
    from util.study.study import Study

    study = Study("role_atlas", model.source, redo=out.redo, seed=seed, untrained_control=False)
    folder, request = out.checked("roles", study, studies=[study.request], heads=heads)
    if heads:
        heads_by_layer(prepare(study.pair[0]), heads)  # raises ValueError for those that the model has not
    evidence = study.arrays("atlas")["evidence"]
    rows = of_heads(evidence, heads or with_role(evidence))
    if not heads:
        rows = rows[rows["verdict"] == HAS]
    sequences, *_ = kinds(study)
    sequences.scores()  # is kept: what it was measured with is that of all
    lines = rows.assign(**{
        f"{name}{end}": [value[place] if isinstance(value, Interval) else value for value in rows[name]]
        for name in ("score", "effect")
        for place, end in enumerate(("", " low", " high"))
    })  # fmt: skip
    results, table = {"roles": study.numbers("atlas")["roles"]}, rows.set_index(["head", "role"])
    write(folder, request, results, lines, table, [sequences])


def edges(
    file: Path | None = None,
    *,
    examples: bool = False,
    device: str = "auto",
    cache_dir: str | None = None,
    redo: bool = False,
) -> None:
    """Run the configs of a file. Raises ValueError without one, and what `edge_configs.load` raises.

    Args:
        file: CONFIG.json: one config, or a list of them
        examples: print a small config of each action
        device: cpu, cuda, cuda:1, ...; default: what there is
        cache_dir: the hub's cache; default: HF_HOME's
        redo: measure again what is cached
    """
    from util.commands import edge_configs
    from util.study.model import Model

    if examples:
        print(json.dumps(edge_configs.EXAMPLES, indent=1))
        return
    if file is None:
        raise ValueError("name a CONFIG.json; --examples prints one of each action")
    models: dict[Model, Model] = {}  # configs of one model share it
    runs = []
    for config in edge_configs.load(file):
        model = replace(config.model, device=device, cache_dir=cache_dir)
        model = models.setdefault(model, model)
        runs.append((config, *edge_configs.prepared(config, model, redo=redo)))
    if len({folder for *_, folder, _ in runs}) < len(runs):
        raise ValueError(f"cannot run {file}: two configs write into one folder; give each an out_dir of its own")
    for number, (config, study, folder, request) in enumerate(runs, 1):
        print(f"[{number}/{len(runs)}] {config.action}: {study.model.title}, {config.draws[0].task}")
        edge_configs.write(config, study, folder, request)


def look(
    model: ModelFlags = ModelFlags(),
    *,
    heads: Heads | None = None,
    text: str | None = None,
    file: Path | None = None,
    task: str | None = None,
    tokens: Numbers | None = None,
    out: Path | None = None,
) -> None:
    """Write the page. Raises ValueError unless one of text, file and task is given.

    Args:
        heads: such as L18H6,L23H3; default: all, of up to 64 tokens
        text: what the model reads
        file: a file that has it
        task: its first prompt: ioi, word pairs such as capitalization or a file of them, or a data set of StaICC
        tokens: positions that the text is seen from, negative ones from the end, as in --tokens=-1,5; default: all of
            up to 64, else the last
        out: a folder that receives look.html
    """
    if sum(given is not None for given in (text, file, task)) != 1:
        raise ValueError("give one of --text, --file and --task")
    source = model.source
    folder = made(out or paths.output("commands") / "look" / paths.model_folder(model.model))
    from util.look import example, look

    try:
        read = text if file is None else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"file = {file}: it is not UTF-8 ({error.reason}); save it so") from None
    page = look(source, heads, example(str(task), source) if read is None else read, tokens)
    command = model.command(
        "look",
        heads=heads and ",".join(map(head_name, heads)),
        text=text,
        file=file and file.name,
        task=task,
        tokens=tokens and ",".join(map(str, tokens)),
    )
    print(page.write(folder / "look.html", command))
