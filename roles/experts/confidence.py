"""How sure an expert may claim to be: measured from probabilities, never asked of the model (18.1.3.2.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Confidence:
    """``value`` 0 to 1; ``uncertainty`` is the spread of what was measured, None where there was only one measure."""

    value: float
    uncertainty: float | None = None


def confidence(mean_logprob: float | None, label_probability: float | None = None) -> Confidence:
    """Confidence from the mean token log-probability and, where one was made, the label decision's probability.

    Both have to be right for the package to be right, so the value is their product.
    """
    measures = [
        min(1.0, math.exp(min(0.0, mean_logprob))) if mean_logprob is not None else None,
        label_probability,
    ]
    known = [min(1.0, max(0.0, measure)) for measure in measures if measure is not None]
    if not known:
        return Confidence(0.0, 1.0)
    spread = round(max(known) - min(known), 6) if len(known) > 1 else None
    return Confidence(round(math.prod(known), 6), spread)
