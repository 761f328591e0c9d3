"""Why a number may be NaN, by the name of its entry. Infinity is allowed nowhere."""

NO_DIRECT_WRITING = "what a head of this class writes to the output by itself is not known"
NO_SHARE = "a share of what the whole model does, where that is not above nothing"

# Entries of records.
IN_RECORDS = {
    "edges": "the receiver is in no later layer than the sender",
    **dict.fromkeys(("attribution", "direct"), NO_DIRECT_WRITING),
}

# Entries of values files, or entries around them.
IN_VALUES = {
    **IN_RECORDS,
    "paths": IN_RECORDS["edges"],
    **dict.fromkeys(("scores", "search", "models", "faithfulness", "CPR", "CMD", "strongest"), NO_SHARE),
    **dict.fromkeys(("explained", "by_draw", "points"), NO_SHARE),
    "claims": "there is not shown to be anything that could be lost, so that a share of it has no interval",
    "shared": "a share of the units that pruning leaves, where it leaves none",
    "random": "a share of the units that random prunings leave, where they leave none",
    "selectivity": "a ratio whose denominator is 0",
}
