"""Operations by self time, alone and by the path of calls that leads to them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import numpy as np
import polars as pl

from deltacell.profile.trace.categories import Category
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Ints, Trace

NOT_RECORDED = "(nothing recorded)"
"""The name of moments in which no event is open."""
OTHER_PATHS = "(other paths)"
"""Paths of calls that are not told apart."""


def operations(trace: Trace, steps: Steps, host: HostTime) -> pl.DataFrame:
    """Return the operations of counted steps by self time.

    Parameters
    ----------
    trace
        Events.
    steps, host
        What the host did in the steps.

    Returns
    -------
    ``operation``, ``category``, ``count``, ``time`` in nanoseconds of all counted steps,
    ``per_step`` in nanoseconds, ``share`` of the wall; shares add up to 1.
    """
    frame = _pieces(trace, steps, host, _plain(trace))
    names = {**dict(enumerate(_plain_names(trace))), -1: NOT_RECORDED}
    return _summed(frame, steps, names, "operation")


def call_paths(
    trace: Trace, nesting: Nesting, steps: Steps, host: HostTime, *, longest: int = 5000
) -> pl.DataFrame:
    """Return the same by path of calls: ``path`` in place of ``operation``.

    Names of a path are parted by `` > ``, outermost first, without the steps themselves, so that
    the same call has the same path in two traces.

    Parameters
    ----------
    trace, nesting
        Events, and what lies in what.
    steps, host
        What the host did in the steps.
    longest
        How many paths to tell apart, those with most time; the others are `OTHER_PATHS`.
    """
    links, codes = _paths(trace, nesting)
    frame = _pieces(trace, steps, host, codes)
    most = frame.group_by("code").agg(pl.col("time").sum())
    kept = most.sort("time", "code", descending=[True, False]).head(longest)["code"].to_list()
    names = _plain_names(trace)
    texts = {code: _path_text(links, names, code) for code in kept if code >= 0}
    if len(most) > longest:
        rest = pl.when(pl.col("code").is_in(kept)).then("code").otherwise(len(links))
        frame = frame.with_columns(rest.cast(pl.Int32).alias("code"))
    return _summed(frame, steps, {**texts, -1: NOT_RECORDED, len(links): OTHER_PATHS}, "path")


_STEP = re.compile(r"^ProfilerStep#\d+$")


def _plain_names(trace: Trace) -> list[str]:
    """Return the names, those of steps without their numbers."""
    return ["ProfilerStep" if _STEP.match(name) else name for name in trace.names]


def _plain(trace: Trace) -> Ints:
    """Return the name of each event; all steps have one."""
    names = _plain_names(trace)
    first: dict[str, int] = {}
    codes = np.array([first.setdefault(name, code) for code, name in enumerate(names)])
    plain: Ints = codes[trace.name]
    return plain


def _pieces(trace: Trace, steps: Steps, host: HostTime, codes: Ints) -> pl.DataFrame:
    """Return the pieces of counted steps with the code of each."""
    counted = steps.counted[host.step]
    row = host.row[counted]
    code = np.where(row >= 0, codes[row], -1).astype(np.int32)
    return pl.DataFrame(
        {"code": code, "category": host.category[counted], "row": row, "time": host.length[counted]}
    )


def _summed(
    frame: pl.DataFrame, steps: Steps, names: Mapping[int, str], column: str
) -> pl.DataFrame:
    """Return the pieces summed by code and category, with names for the codes."""
    counted = int(steps.counted.sum())
    wall = int(steps.wall[steps.counted].sum())
    summed = frame.group_by("code", "category").agg(
        pl.col("row").n_unique().cast(pl.Int64).alias("count"), pl.col("time").sum()
    )
    titles = [category.name for category in Category]
    return summed.select(
        pl.Series(column, [names[code] for code in summed["code"].to_list()], dtype=pl.String),
        pl.Series("category", [titles[code] for code in summed["category"].to_list()]),
        "count",
        "time",
        (pl.col("time") / counted).alias("per_step"),
        (pl.col("time") / wall).alias("share"),
    ).sort("time", column, "category", descending=[True, False, False])


def _paths(trace: Trace, nesting: Nesting) -> tuple[list[tuple[int, int]], Ints]:
    """Return all paths, each as the one around it and a name, and the path of each event."""
    names = _plain_names(trace)
    step = np.array([name == "ProfilerStep" for name in names], dtype=bool)
    plain = _plain(trace)
    links = [(0, names.index("ProfilerStep") if "ProfilerStep" in names else 0)]
    codes = np.full(len(trace), NOTHING, dtype=np.int64)
    depth = _depth(nesting)
    order = np.argsort(depth, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(depth[order])) + 1):
        if not len(rows):
            continue
        parent = nesting.parent[rows]
        outer = np.where(parent >= 0, codes[parent], 0)
        keys = outer * len(names) + plain[rows]
        is_step = step[trace.name[rows]]
        fresh, place = np.unique(keys[~is_step], return_inverse=True)
        codes[rows[~is_step]] = len(links) + place
        codes[rows[is_step]] = 0
        links += [divmod(key, len(names)) for key in fresh.tolist()]
    return links, codes


def _path_text(links: list[tuple[int, int]], names: list[str], code: int) -> str:
    """Return a path as text; names and paths that are very long are cut in their middle."""
    parts = []
    at = code
    while True:
        at, name = links[at]
        parts.append(_shortened(names[name], 200))
        if at == 0:
            return _shortened(" > ".join(reversed(parts)), 4000)


def _shortened(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    # Two that differ only in what is left out stay two.
    mark = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{text[: most // 2]}…{mark}…{text[-most // 2 :]}"


def _depth(nesting: Nesting) -> Ints:
    """Return how many events lie around each, int64 [n]."""
    depth = np.zeros(len(nesting.parent), dtype=np.int64)
    at = nesting.parent.astype(np.int64)
    rows = np.flatnonzero(at >= 0)
    while len(rows):
        depth[rows] += 1
        at[rows] = nesting.parent[at[rows]]
        rows = rows[at[rows] >= 0]
    return depth
