"""Numbers as a person reads them: times, changes, shares, ratios, counts."""

from __future__ import annotations


def time_text(seconds: float | None) -> str:
    """Return a time in the unit in which it is best read."""
    if seconds is None:
        return "–"
    size = abs(seconds)
    for unit, length in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if size >= 0.9995 * length:
            value = seconds / length
            return f"{_three(value)} {unit}"
    return "0" if size < 5e-10 else f"{_three(seconds * 1e9)} ns"


def change_text(seconds: float) -> str:
    """Return a difference of times with its sign, a real minus where it is one."""
    size = time_text(abs(seconds))
    return size if size == "0" else f"{'+' if seconds > 0 else '−'}{size}"


def share_text(share: float | None) -> str:
    """Return a share in percent."""
    if share is None:
        return "–"
    # Adding 0 leaves no zero with a minus.
    return f"{round(100 * share, 1) + 0.0:.1f} %".replace("-", "−")


def ratio_text(ratio: float, times: str = "×") -> str:
    """Return how many times something is; a terminal has ``x`` for the sign."""
    if abs(ratio) >= 9.95:
        return f"{ratio:,.0f}{times}"
    return f"{ratio:.1f}{times}" if abs(ratio) >= 1.495 else f"{ratio:.3g}{times}"


def _three(value: float) -> str:
    size = abs(value)
    text = f"{value:,.0f}" if size >= 99.95 else f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"
    return text.replace("-", "−")
