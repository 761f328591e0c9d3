"""Studies of StaICC's prompts: arguments that name its data, the prompts, and what of a request they decide."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from util.engine import batches
from util.load_model_and_data import demonstration_pool, staicc_prompts, staicc_version
from util.prompts.prompt import Prompt
from util.records import study as base
from util.records.checked import QUERIES, Dataset, Natural, Prompts, checked


@checked
class StaiccStudy(base.Study):
    """What is measured on the prompts of one StaICC data set.

    dataset: a name or an index (0-9); k: demonstrations; prompts: of the 512 test queries, from the first one; seed: of
    what is drawn at random: with 0 the queries and demonstrations are StaICC's own, see `staicc_prompts`. More prompts
    than there are become all of them.
    """

    dataset: Dataset = "financial_phrasebank"
    k: Natural = 4
    prompts: Prompts = QUERIES
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.k > (pool := demonstration_pool(self.dataset)):
            raise ValueError(f"k = {self.k}: {self.dataset} has a pool of {pool} demonstrations; choose a smaller k")

    @property
    def data_request(self) -> dict[str, Any]:
        """What of a request these arguments decide. The batches decide the last bits of numbers."""
        return {
            "dataset": self.dataset,
            "data_version": f"StaICC {staicc_version()}",
            "k": self.k,
            "prompts": self.prompts,
            "seed": self.seed,
            "token_budget": batches.TOKEN_BUDGET,
        }

    @cached_property
    def items(self) -> list[Prompt]:
        """The prompts themselves."""
        return staicc_prompts(self.dataset, self.k, self.seed)[: self.prompts]

    @property
    def label_numbers(self) -> dict[str, NDArray[np.int64]]:
        """The numbers of the labels among those of the data set: gold [N], demonstrations [N, k]."""
        shown = np.array([prompt.demonstrations for prompt in self.items], np.int64)
        return {
            "gold": np.array([prompt.gold for prompt in self.items]),
            "demonstrations": shown.reshape(len(self.items), -1),
        }
