"""Made-up readings of forerunner heads, as records keep them."""

import numpy as np


def reading(magnitude, n_t=None, control=0.01):
    """Magnitudes [N, L, H] on prompts of n_t tokens, or 100; other tokens are read with `control`."""
    magnitude = np.asarray(magnitude, np.float32)
    control = np.broadcast_to(np.asarray(control, np.float32), magnitude.shape)
    n_t = np.full(len(magnitude), 100) if n_t is None else n_t
    return {"magnitude": magnitude, "control": control, "n_t": n_t, "label_lengths": np.ones_like(n_t)}


def label_reads(reads, gold, shown):
    """What heads read of the labels of demonstrations, [N, L, H, k], on prompts of 100 tokens and two classes."""
    return {
        "reads": reads, "gold": gold, "demonstrations": shown, "classes": 2, "n_t": np.full(len(gold), 100),
        "similarity": np.ones((*reads.shape[:2], reads.shape[3])),
    }  # fmt: skip
