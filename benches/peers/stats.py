"""Medians, spreads and ratios of neighbouring arms."""

import statistics


def spread(values: list[float]) -> dict:
    """Median, quartiles and range."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[-1]
    q1, median, q3 = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else [low] * 3
    return {"median": median, "q1": q1, "q3": q3, "min": low, "max": high, "count": len(ordered)}


def ratios(ours: list[float], theirs: list[float]) -> dict:
    """Spread of the per-round ratios; both lists are in the order of the rounds."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} rounds of one arm and {len(theirs)} of the other; run both in every round")
    each = [a / b for a, b in zip(ours, theirs)]
    return spread(each) | {"rounds": each}
