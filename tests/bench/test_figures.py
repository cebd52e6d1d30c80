"""Figures of benchmarks: drawn from results, in the two formats there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltacell.bench.figures import draw_ladder, draw_scaling
from deltacell.errors import InputError
from deltacell.report.figures import check_figure

LADDER = {
    "rows": [
        {"strategy": "subgraph", "s_per_genotype": 4.3, "peak_mib": 2000.0},
        {"strategy": "shared", "s_per_genotype": 0.4, "peak_mib": 0.0},
        {"strategy": "wild_type", "s_per_genotype": 0.3, "peak_mib": 60.0},
    ],
    "roofline_s_per_genotype": 0.2,
    "settings": {"genes": 6_607, "edges": 2_423_370, "layers": 3, "batch": 8},
}
SCALING = {
    "rows": [
        {"sweep": sweep, "strategy": name, "size": size, "s_per_step": 0.1 * size}
        for sweep in ("batch", "cell")
        for name in ("shared", "delta")
        for size in (1, 2_500, 4_000_000)
    ],
    "fits": [
        {"sweep": sweep, "strategy": name, "exponent": 1.0, "factor": 0.1}
        for sweep in ("batch", "cell")
        for name in ("shared", "delta")
    ],
}
BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml"}


@pytest.mark.parametrize("suffix", BEGINNINGS)
@pytest.mark.parametrize(("draw", "result"), [(draw_ladder, LADDER), (draw_scaling, SCALING)])
def test_figures_are_drawn(tmp_path: Path, suffix: str, draw, result) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "new" / f"figure{suffix}"
    draw(result, path)
    assert path.read_bytes().startswith(BEGINNINGS[suffix])


def test_the_ladder_names_all_its_strategies(tmp_path: Path) -> None:
    draw_ladder(LADDER, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in ("subgraph", "shared", "wild_type", "4.3"))


def test_figures_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"written as .png or .svg, and this ends in '.pdf'"):
        check_figure(tmp_path / "a.pdf")
    check_figure(None)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        draw_ladder(LADDER, tmp_path / "file" / "a.png")
