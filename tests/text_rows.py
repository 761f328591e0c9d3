"""Made-up rows of the seven text tasks, as their data sets have them, and folders of such rows."""

import json

from util.prompts.own_tasks import column

ROWS = {  # a row for number n; `label` is n % 2
    "boolq": lambda n: {"question": f"is tower {n} high", "passage": f"Tower {n} is {n} m high.\n\nIt is old. "},
    "ethos": lambda n: {"text": f" comment number {n} "},
    "rte": lambda n: {"premise": f"There are {n} boats.", "hypothesis": f"Some {n} boats are there.", "idx": n},
    "sst2": lambda n: {"sentence": f"film {n} is long . ", "idx": n},
    "subj": lambda n: {"text": f"scene {n} is dark .", "label_text": "objective"},
    "wic": lambda n: {
        "word": "bank", "sentence1": f"He sat {n} times on banks.", "sentence2": f"The bank has {n} doors.",
        "start1": len(f"He sat {n} times on "), "end1": len(f"He sat {n} times on banks"), "idx": n,
    },
    "wsc": lambda n: {
        "text": f"Ann {n} told Eve that she was late.", "span1_index": 0, "span2_index": 5,
        "span1_text": f"Ann {n}", "span2_text": "she", "idx": n,
    },
}  # fmt: skip
EVALUATION = {"subj": "test"}  # the others' is validation
SIZES = {"train": 24, "validation": 10, "test": 10}


def splits(name):
    """The rows of each split of a task: other numbers in each."""
    made = {}
    for split in ("train", EVALUATION.get(name, "validation")):
        start = 0 if split == "train" else 100
        made[split] = [ROWS[name](n) | {"label": n % 2} for n in range(start, start + SIZES[split])]
    return made


def as_jsonl(rows, file):
    """Rows as a .jsonl file of this name, whose folder need not be there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, rows)))


def written(name, folder):
    """A folder with a .jsonl file for each split of a task."""
    for split, rows in splits(name).items():
        as_jsonl(rows, folder / split)
    return folder


def animals(file):
    """Word pairs that the embedded model carries, as a file of a user's own."""
    known = [f"{word},{word.capitalize()}" for word in column("embedded_words", "word")[:24]]
    file.write_text("\n".join(["input,output", *known]))
