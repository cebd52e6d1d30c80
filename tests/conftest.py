"""Fixtures that all tests share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real files, which a user's checkout does not have."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real files are not here: {folder} does not exist")
    return folder


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "]]></style><svg onload=alert(3)>",
    "\"' onmouseover='alert(4)",
    "a\u2028b\u202ec{{ 7 * 7 }}",
    "\u05d0\u05d1 `$(x)`",
    "long" * 50,
)
"""Names as no one should give them: markup, scripts, other ways of writing, no end."""


@pytest.fixture(scope="session")
def hostile() -> tuple[str, ...]:
    """Names as no one should give them."""
    return HOSTILE


@pytest.fixture(scope="session")
def made_ranking() -> Callable[..., dict[str, Any]]:
    """What makes the result of a ranking, as `Ranking.to_json` gives it."""
    return _ranking


def _ranking(
    rows: int = 60,
    *,
    size: int = 3,
    runs: int = 3,
    measured: int = 200,
    names: Sequence[str] = (),
    relations: Sequence[str] = ("coexpression", "regulatory", "physical", "experimental"),
    statuses: Sequence[str] = ("untested", "tested", "measured"),
    ends: Sequence[str | None] = ("lowest", "highest"),
) -> dict[str, Any]:
    """Return a ranking over 40 genes, drawn with a seed; the first genes have the names given."""
    draw = random.Random(1)
    genes = [f"YAL{i:03}{'WC'[i % 2]}" for i in range(40)]
    standard = [*names, *(f"ABC{i}" for i in range(40 - len(names)))]
    where = {gene: i for i, gene in enumerate(genes)}

    def of(these: Sequence[str]) -> dict[str, Any]:
        return {"genes": list(these), "names": [standard[where[gene]] for gene in these]}

    def row(end: str | None, rank: int) -> dict[str, Any]:
        these = sorted(draw.sample(genes, size))
        links = [
            {"first": a, "second": b, "relation": relation}
            for i, a in enumerate(these)
            for b in these[i + 1 :]
            for relation in relations
            if draw.random() < 0.2
        ]
        status = draw.choice(list(statuses))
        sign = 1 if end == "highest" else -1
        return {
            **of(these),
            "end": end,
            "rank": rank,
            "score": sign * (0.9 - 0.8 * rank / max(rows, 1)),
            "spread": draw.uniform(0.01, 0.1) if runs > 1 else None,
            "status": status,
            "measured": draw.gauss(0, 0.3) if status == "measured" else None,
            "linked": draw.choice([False, False, False, True, None]),
            "relations": [name for name in relations if any(x["relation"] == name for x in links)],
            "links": links,
            "pathways": [f"pathway {i}" for i in range(8) if draw.random() < 0.08],
            "complexes": [f"complex {i}" for i in range(4) if draw.random() < 0.08],
        }

    listed = []
    for place, end in enumerate(ends):
        of_end = rows // len(ends) + (place < rows % len(ends))
        listed += [row(end, rank + 1) for rank in range(of_end)]
    known = []
    for i in range(measured):
        score = draw.gauss(0, 0.3)
        part = "test" if i < measured // 4 else "validation" if i < measured // 2 else "training"
        told = {"predicted": 0.5 * score + draw.gauss(0, 0.1), "measured": score, "part": part}
        known.append({**of(sorted(draw.sample(genes, size))), **told})
    parts = [part for part in ("test", "validation", "training") if measured > 3]
    sets = {part: sum(one["part"] == part for one in known) for part in parts}
    return {
        "title": "Untested triples of 40 genes, lowest and highest by score",
        "sentences": ["A first sentence.", "A second one.", "A third one.", "A fourth one."],
        "file": "ranking.parquet",
        "request": {"sets": "triples", "size": size, "top": 1000, "above": None},
        "runs": [
            {
                "name": f"run-{i}",
                "seed": i,
                "model": "dango",
                "checkpoint": "best",
                "sha256": "0" * 64,
                "validation_pearson": 0.4 if i else None,
            }
            for i in range(runs)
        ],
        "counts": {"genes": 40, "sets": 9880, "rows": rows, "lowest": rows, "highest": 0},
        "relations": list(relations),
        "rows": listed,
        "rows_not_here": 0,
        "measured": known,
        "agreement": [
            {"part": part, "sets": sets[part], "pearson": 0.5 if part == "test" else 0.7}
            for part in parts
        ],
    }
