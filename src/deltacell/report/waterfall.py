"""The drawing of a waterfall: where its bars begin and end."""

from __future__ import annotations

from itertools import accumulate, pairwise

from deltacell.base.rendering import Values


def drawn_fall(fall: Values) -> Values:
    """Return a waterfall with the places of its bars, as shares of the drawing's width."""
    changes = [bar["change_s"] for bar in fall["bars"]]
    reached = list(accumulate(changes, initial=fall["a_s"]))
    base, high = _range_of_fall(min(reached), max(reached))
    places = [min(max((seconds - base) / (high - base), 0.0), 1.0) for seconds in reached]
    rows = []
    for bar, (before, after) in zip(fall["bars"], pairwise(places), strict=True):
        rows.append({**bar, "sign": _sign(bar["change_s"]), "from": before, "to": after})
    return {**fall, "begin": base, "a_width": places[0], "b_width": places[-1], "rows": rows}


def _range_of_fall(low: float, high: float) -> tuple[float, float]:
    """Return the ends of the scale for totals between two values.

    It begins at 0 unless the totals differ so little that changes would be invisible.
    """
    difference = high - low
    is_visible_from_0 = difference >= 0.2 * high
    base = 0.0 if is_visible_from_0 else max(low - 0.3 * difference, 0.0)
    return (0.0, 1.0) if high <= base else (base, high)


def _sign(change: float) -> str:
    if change > 0:
        return "more"
    return "less" if change < 0 else ""
