"""The clone that the tests lie in: its folder, and its texts."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def text(path):
    """What a file of the clone says."""
    return (ROOT / path).read_text(encoding="utf-8")
