"""A small clone of the repository of Crosbie & Shutova (2024): files of the same form, with rows of our own."""

import json

import yaml

HEADER = "Sort the sequences.\n\n"
LETTERS = {"repetition": "abab", "recursion": "abbb", "centre_embedding": "abcba"}
WORDS = ("f_a_f_p", "f_a_f_p_4way", "vegetable_vehicle_body-part_instrument", "v_v_b_i_4way")


def write(folder):
    """Write it, and return the rows (text, label) of each of their tasks, one of them twice."""
    harness, rows = folder / "lm-evaluation-harness", {}
    places = [harness / "synthetic", harness / "lm_eval" / "tasks" / "synthetic"]
    for place in places:
        place.mkdir(parents=True)
    for number, task in enumerate((*LETTERS, *WORDS)):
        labels = ["Foo", "Bar", "Mur", "Res"][: 4 if "4way" in task else 2]
        column = "sequence" if task in LETTERS else "text"
        rows[task] = [
            (f"{chr(97 + one)}{number} {place}{chr(97 + one)}", label)
            for place, label in enumerate(labels)
            for one in range(12)
        ]
        lines = [{column: text, "label": label} for text, label in (*rows[task], rows[task][0])]
        (places[0] / f"rows_{number}.json").write_text(json.dumps(lines))
        config = {
            "task": task,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"train": f"synthetic/rows_{number}.json"}},
            "description": HEADER,
            "doc_to_text": f"{{{{{column}}}}}:",
            "doc_to_target": "label",
            "doc_to_choice": labels,
            "target_delimiter": "",
            "fewshot_config": {"sampler": "balanced" if task in LETTERS else "synthetic", "seed": 42},
        }
        (places[1] / f"config_{number}.yaml").write_text(yaml.safe_dump(config))
    return rows
