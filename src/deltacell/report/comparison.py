"""Comparisons by trials: on the terminal, as Markdown and as a page, from their `to_json`."""

from __future__ import annotations

from collections.abc import Iterator

from deltacell.base.rendering import Values
from deltacell.base.text import change_text, ratio_text, seconds_text
from deltacell.report.page import page
from deltacell.report.terminal import Piece, markdown, print_line, print_pieces
from deltacell.report.waterfall import drawn_fall

_MOST_VARIATIONS = 12  # of each training, on the terminal


def print_comparison(result: Values) -> None:
    """Print a comparison: the sentence, what each change gives, parts, and variations."""
    print_line(result["sentence"], style="bold")
    print_pieces(_pieces(result))


def markdown_comparison(result: Values) -> str:
    """Return a comparison as Markdown."""
    return markdown(result["sentence"], _pieces(result))


def comparison_page(result: Values) -> str:
    """Return a comparison as self-contained HTML."""
    return page(
        "comparison",
        styles=("waterfall.css",),
        data=result,
        names=result["names"],
        falls=[drawn_fall(fall) for fall in result["waterfalls"] if fall["bars"]],
        tables=[table for table in _tables(result) if table.rows],
    )


def _pieces(result: Values) -> Iterator[Piece]:
    for fall in result["waterfalls"]:
        yield _fall_piece(fall, result["names"])
    yield from _tables(result)
    yield Piece("what was faster", (), result["advice"])
    yield Piece("about the trials", (), result["notes"])


def _tables(result: Values) -> Iterator[Piece]:
    for side, name in zip("ab", result["names"], strict=True):
        tried = [_variation_row(one) for one in result["variations"] if one["side"] == side]
        titles = ("variation", "kind", "times as fast", "from", "to", "same numbers")
        yield Piece(f"variations of {name}", titles, tried[:_MOST_VARIATIONS])


def _variation_row(variation: Values) -> tuple[object, ...]:
    speeds = [ratio_text(variation[key]) for key in ("speedup", "low", "high")]
    return variation["settings"], variation["kind"], *speeds, variation["is_same_model"]


def _fall_piece(fall: Values, names: list[str]) -> Piece:
    columns = ("part", *fall["heads"], "change", "noise", "share of the gap")
    rows = []
    for bar in fall["bars"]:
        sides = ["-" if bar[key] is None else seconds_text(bar[key]) for key in ("a_s", "b_s")]
        noise = "-" if bar["noise_s"] is None else f"± {seconds_text(bar['noise_s'])}"
        change = change_text(bar["change_s"])
        rows.append((bar["part"], *sides, change, noise, _share(bar["share_of_gap"])))
    if rows:
        share = _share(1.0 if fall["gap_s"] else None)
        rows.append(("all", "-", "-", change_text(fall["gap_s"]), "-", share))
    title = (
        f"from {names[0]} to {names[1]} per sample, {fall['title']}: {ratio_text(fall['ratio'])}"
    )
    return Piece(title, columns, rows, total=True)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
