"""Classification tasks whose rows are not our own: seven NLP data sets as prompts, rows of a paper, StaICC's names.

Source: Crosbie & Shutova 2024, section 6, on SuperGLUE (Wang et al. 2019: BoolQ, RTE, WiC, WSC), ETHOS (Mollas et al.
2020), SST-2 (Socher et al. 2013) and SUBJ (Pang & Lee 2004). Field names, blank lines and labels are those of the
configurations in their code; the one-line instructions are our own wording. Their ETHOS configuration demonstrates and
asks the same rows; we follow their text, which holds out a fifth.

`load_model_and_data.load_text_task` reads the rows and gives a `classification.Task`.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import yaml

from util.paths import sha256
from util.prompts.classification import Rows, Task, shares_word
from util.prompts.own_tasks import column_text
from util.prompts.prompt import Layout, Strings

Cells = Mapping[str, str]  # what a row has in its columns, as text
Hub = tuple[str, Mapping[str, Any]]  # a data set on Hugging Face's hub: its id, and the options of `load_dataset`
TRAIN = "train"  # the split that demonstrations are drawn from
HELD_OUT = 0.2  # of the rows, where a data set has one split


@dataclass(frozen=True)
class TextTask:
    """How the rows of a data set become a classification task.

    template: what is written of a row, before the answer; columns: what of a row is read for it; derived: fields of the
    template that are no column, or not as it stands there. answer: the name of the answer's field. classes: the names
    of the classes, in the order of their numbers in the column `label`. labels: by class; the class that comes first
    becomes Foo, the other Bar, where labels are unrelated to the classes. hub: where the rows are; evaluation: the
    split that is asked, where demonstrations are of TRAIN. Without one, a fifth of the rows is held out. staicc: the
    name of the same texts in StaICC.
    """

    name: str
    instruction: str
    template: str
    columns: Strings
    answer: str
    classes: tuple[str, str]
    labels: Mapping[str, str]
    hub: Hub
    derived: Mapping[str, Callable[[Cells], str]] = field(default_factory=dict)
    evaluation: str | None = "validation"
    staicc: str | None = None

    @property
    def layout(self) -> Layout:
        """Instruction, blank line, then examples: fields, blank line, name of the answer, space, label, blank line."""
        return Layout(f"\n\n{self.answer}:", " ", "\n\n", f"{self.instruction}\n\n")

    @property
    def splits(self) -> list[str]:
        """The splits that are read: that of demonstrations, and that of evaluation if there is one."""
        return [split for split in (TRAIN, self.evaluation) if split]

    @property
    def needs(self) -> str:
        """What a folder with the rows must hold, in words."""
        return (
            f"a folder with {' and '.join(f'{split}.jsonl' for split in self.splits)} (or .json, .csv, .parquet, or "
            f"written by the save_to_disk of datasets), with the columns {', '.join(self.columns)} and label "
            f"(0 or {self.classes[0]}, 1 or {self.classes[1]})"
        )


def _question(cells: Cells) -> str:
    """A question with a capital and a question mark; those of BoolQ have neither."""
    question = cells["question"].strip(" ?")
    return f"{question[:1].upper()}{question[1:]}?"


def _word(cells: Cells) -> str:
    """The word as it stands in the first sentence; the column `word` has its basic form."""
    word = cells["sentence1"][int(cells["start1"]) : int(cells["end1"])]
    if not word.strip():
        raise ValueError(f"start1 = {cells['start1']}, end1 = {cells['end1']}: no word is there in sentence1")
    return word


YES_IF_TRUE = {"true": "Yes", "false": "No"}
SUPERGLUE, GLUE = "aps/super_glue", "nyu-mll/glue"
DEFINITIONS = {
    definition.name: definition
    for definition in (
        TextTask(
            name="boolq",
            instruction="Use the passage to answer the question that follows it.",
            template="Input: {passage}\n\n{question}",
            columns=("passage", "question"),
            derived={"question": _question},
            answer="Output",
            classes=("false", "true"),
            labels=YES_IF_TRUE,
            hub=(SUPERGLUE, {"name": "boolq"}),
        ),
        TextTask(
            name="ethos",
            instruction="Say whether the input is hate speech.",
            template="Input: {text}",
            columns=("text",),
            answer="Output",
            classes=("no_hate_speech", "hate_speech"),
            labels={"hate_speech": "Yes", "no_hate_speech": "No"},
            # converted files, as the repository holds a script: `datasets` no longer runs scripts
            hub=(
                "iamollas/ethos",
                {"data_files": {"train": "binary/train/*.parquet"}, "revision": "refs/convert/parquet"},
            ),
            evaluation=None,
        ),
        TextTask(
            name="rte",
            instruction="Say whether the hypothesis follows from the premise.",
            template="Premise: {premise}\nHypothesis: {hypothesis}",
            columns=("premise", "hypothesis"),
            answer="Answer",
            classes=("entailment", "not_entailment"),
            labels={"entailment": "Yes", "not_entailment": "No"},
            hub=(SUPERGLUE, {"name": "rte"}),
        ),
        TextTask(
            name="sst2",
            instruction="Say which sentiment the review expresses.",
            template="Review: {sentence}",
            columns=("sentence",),
            answer="Sentiment",
            classes=("negative", "positive"),
            labels={"positive": "Positive", "negative": "Negative"},
            hub=(GLUE, {"name": "sst2"}),
            staicc="glue_sst2",
        ),
        TextTask(
            name="subj",
            instruction="Say whether the input expresses what a person thinks, feels or believes.",
            template="Input: {text}",
            columns=("text",),
            answer="Output",
            classes=("objective", "subjective"),
            labels={"subjective": "Yes", "objective": "No"},
            hub=("SetFit/subj", {}),
            evaluation="test",
            staicc="subjective",
        ),
        TextTask(
            name="wic",
            instruction="Say whether the word means the same in both sentences.",
            template="Word: {word}\nSentence 1: {sentence1}\nSentence 2: {sentence2}",
            columns=("sentence1", "sentence2", "start1", "end1"),
            derived={"word": _word},
            answer="Answer",
            classes=("false", "true"),
            labels=YES_IF_TRUE,
            hub=(SUPERGLUE, {"name": "wic"}),
        ),
        TextTask(
            name="wsc",
            instruction="Say whether the pronoun stands for the noun in the sentence.",
            template="Sentence: {text}\nPronoun: {span2_text}\nNoun: {span1_text}",
            columns=("text", "span1_text", "span2_text"),
            answer="Answer",
            classes=("false", "true"),
            labels=YES_IF_TRUE,
            hub=(SUPERGLUE, {"name": "wsc.fixed"}),
        ),
    )
}
TEXT_TASKS = tuple(DEFINITIONS)

# Plain texts that means of heads are taken over (Crosbie & Shutova, section 4.3): column `premise` of TRAIN.
MNLI = GLUE, {"name": "mnli"}


def find(name: str) -> TextTask:
    """The definition of that name, one of TEXT_TASKS. Raises ValueError for another name."""
    if name not in DEFINITIONS:
        raise ValueError(f"no text task {name!r}; there are {', '.join(TEXT_TASKS)}")
    return DEFINITIONS[name]


def labelled_rows(definition: TextTask, rows: Iterable[Any], where: str) -> Rows:
    """The text and label of each row, in order; of rows with the same text, the first is kept.

    rows: mappings with the columns of the definition, and `label`: the number or the name of a class. where: what rows
    they are, for messages. Raises ValueError, which names the row (from 0), for a row without a column, with an empty
    text or an unknown class, and for no rows.
    """
    labelled: dict[str, str] = {}
    for number, row in enumerate(rows):
        try:
            cells = {column: column_text(row, column) for column in definition.columns}
            cells |= {name: derive(cells) for name, derive in definition.derived.items()}
            text = definition.template.format_map({name: cell.strip() for name, cell in cells.items()})
            value, classes = column_text(row, "label").strip().lower(), definition.classes
            names = [*classes, *"01"]  # test splits often hide a label by -1
            if value not in names:
                raise ValueError(f"label is {value!r}; give 0 or {classes[0]!r}, 1 or {classes[1]!r}")
            labelled.setdefault(text, definition.labels[classes[names.index(value) % 2]])
        except ValueError as error:
            raise ValueError(f"{where}, row {number}: {error}") from None
    if not labelled:
        raise ValueError(f"{where}: there are no rows")
    return tuple(labelled.items())


def held_out(rows: Rows, name: str) -> tuple[Rows, Rows]:
    """Rows for demonstrations and rows for evaluation: a random fifth of them, drawn by the name of the data set.

    Both are in the order of the rows. The draw does not look at labels.
    """
    chosen = {*Random(f"{name}: held out").sample(range(len(rows)), round(HELD_OUT * len(rows)))}
    kept, out = ([row for number, row in enumerate(rows) if (number in chosen) is which] for which in (False, True))
    return tuple(kept), tuple(out)


# ------------------------------------------------------------------------------------------------ StaICC


DATASETS = (
    "glue_sst2",
    "rotten_tomatoes",
    "financial_phrasebank",
    "sst5",
    "trec",
    "agnews",
    "subjective",
    "tweet_eval_emotion",
    "tweet_eval_hate",
    "hate_speech_18",
)


def dataset_index(dataset: int | str) -> int:
    """The StaICC index of a data set, given by index or name. Raises ValueError, which lists the choices."""
    if isinstance(dataset, str) and dataset in DATASETS:
        return DATASETS.index(dataset)
    if not isinstance(dataset, str | bool) and dataset in range(len(DATASETS)):
        return int(dataset)
    choices = ", ".join(f"{i} {name}" for i, name in enumerate(DATASETS))
    raise ValueError(f"unknown data set {dataset!r}; choose one of: {choices}")


# ------------------------------------------------------------------------------------------------ rows of a paper


THEIRS = {  # tasks with the rows of their authors: how their configurations call them, by our names
    "repetition": "repetition",
    "recursion": "recursion",
    "centre_embedding": "centre_embedding",
    "wordseq1": "f_a_f_p",
    "wordseq1_4way": "f_a_f_p_4way",
    "wordseq2": "vegetable_vehicle_body-part_instrument",
    "wordseq2_4way": "v_v_b_i_4way",
}
PLACE = "lm_eval/tasks/synthetic"  # below the folder whose synthetic/ has the rows


def authors_task(name: str, clone: Path) -> tuple[Task, str]:
    """A task with the rows and the instruction of Crosbie & Shutova (2024), and a digest of its files.

    name: ours, one of THEIRS. clone: of github.com/JoyC177/Induction_Heads_ICL, which has a configuration of
    lm-evaluation-harness for each task (lm_eval/tasks/synthetic/*.yaml) and its rows (synthetic/*.json); three of the
    ten files of rows are in no configuration. Demonstrations are drawn by our sampler, see
    `classification.demonstrations`. A row that comes again is asked once: of 500 rows of repetition and recursion 450
    differ, of 1,000 in four classes 625 and 631. Raises ValueError, naming the file, for what is not as in their
    repository.
    """
    needs = f"give a clone of Induction_Heads_ICL, with {PLACE}/*.yaml and synthetic/*.json"
    files = {_config(file).get("task"): file for file in sorted(clone.glob(f"**/{PLACE}/*.yaml"))}
    if (file := files.get(THEIRS[name])) is None:
        raise ValueError(f"data = {str(clone)!r}: no configuration there has the task {THEIRS[name]!r}; {needs}")
    try:
        config = _config(file)
        (rows,) = config["dataset_kwargs"]["data_files"].values()
        rows = file.parents[len(PLACE.split("/"))] / rows
        column, separator = re.fullmatch(r"\{\{(\w+)\}\}(.+)", config["doc_to_text"]).groups()  # type: ignore[union-attr]
        layout = Layout(separator, config["target_delimiter"], "\n\n", config["description"])
        labelled = {row[column]: row[config["doc_to_target"]] for row in json.loads(rows.read_text(encoding="utf-8"))}
        forbids = shares_word if config["fewshot_config"]["sampler"] == "synthetic" else operator.eq
        task = Task(name, tuple(labelled.items()), tuple(config["doc_to_choice"]), layout, forbids)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"data = {str(clone)!r}, {file.name}: {error!r}; {needs}") from error
    return task, f"Induction_Heads_ICL {sha256(file)[:16]} {sha256(rows)[:16]}"


def _config(file: Path) -> Mapping[str, Any]:
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError:
        config = None
    return config if isinstance(config, Mapping) else {}
