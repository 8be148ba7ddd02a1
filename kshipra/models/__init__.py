"""One forward pass: from token ids to logits, for every family that Kshipra runs.

Shape legend, used at the end of lines throughout the package:

    B rows   T new columns   S stored columns   L layers   H query heads   G key/value heads
    D head size   W width   V vocabulary
"""
