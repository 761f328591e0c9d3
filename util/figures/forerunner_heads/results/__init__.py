"""What the parts of the forerunner figure give: frozen results with their tables, figures and sentences.

Arrays have prompts N, conditions C (what is appended), layers L and heads H in this order; layers are counted among
those that have attention.
"""

from util.figures.forerunner_heads.results.ablation import Answers, Score, Tables, Task, changes, told
from util.figures.forerunner_heads.results.copy_magnitudes import Magnitudes, Reading
from util.figures.forerunner_heads.results.counts import Counts, DataSets, Growth, Layers
from util.figures.forerunner_heads.results.heads import HeadCuts, HeadEffects
from util.figures.forerunner_heads.results.induction import InductionHeads, LabelReads
from util.figures.forerunner_heads.results.setting import Setting
from util.figures.forerunner_heads.results.specificity import HeldOut, Planted, PlantedErrors
from util.figures.forerunner_heads.results.together import check_lines, published, values
