"""Strip an executed notebook of what differs between machines and runs: `strip.py EXECUTED PLACE`."""

import sys

import nbformat

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WIDGET = "application/vnd.jupyter.widget-view+json"  # progress bars are no results


def stripped(notebook):
    """The notebook with tags and folded cells as its only metadata, and without progress bars and warnings."""
    notebook.metadata = METADATA
    for cell in notebook.cells:
        cell.metadata = {key: value for key, value in cell.metadata.items() if key in ("tags", "jupyter")}
        if cell.cell_type == "code":
            cell.outputs = [
                output
                for output in cell.outputs
                if output.get("name") != "stderr" and WIDGET not in output.get("data", {})
            ]
    return notebook


if __name__ == "__main__":
    executed, place = sys.argv[1:]
    notebook = stripped(nbformat.read(executed, as_version=4))
    nbformat.validate(notebook)
    nbformat.write(notebook, place)
