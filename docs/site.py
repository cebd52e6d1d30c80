"""Build steps of the docs site: pages from notebooks, and the figure of the README.

MkDocs calls `on_files` and `on_page_markdown`. Run as a program, this file draws
``pictures/accuracy.svg`` from the table of the README, so that the two always agree.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
PICTURE = DOCS / "pictures" / "accuracy.svg"


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook."""
    from mkdocs.structure.files import File

    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        name = f"notebooks/{path.stem}.md"
        files.append(File.generated(config, name, content=notebook_page(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to notebooks at their pages."""
    return re.sub(r"\]\(([^)]*)\.ipynb\)", r"](\1.md)", markdown)


def notebook_page(path: Path) -> str:
    """Convert a notebook to Markdown."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(parts) + "\n"


def accuracy(text: str) -> tuple[list[str], list[tuple[str, list[float | None]]]]:
    """Read the splits and the correlations of each predictor from the table of the README."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head = next(i for i, line in enumerate(lines) if line.startswith("| predictor | random split"))
    splits = [cell.strip() for cell in lines[head].strip("|").split("|")[1:]]
    rows = []
    for line in lines[head + 2 :]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if len(cells) != len(splits):
            break
        numbers = [re.search(r"-?\d+\.\d+", cell) for cell in cells]
        rows.append((name, [None if found is None else float(found[0]) for found in numbers]))
    return splits, rows


def draw() -> None:
    """Draw what is predicted, from what, and how well."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    splits, rows = accuracy(README.read_text(encoding="utf-8"))
    settings = {"svg.hashsalt": "deltacell", "svg.fonttype": "none", "font.size": 10}
    with rc_context(settings):
        figure = Figure(figsize=(10, 4.3), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.25])
        _schema(left)
        colours = ["#2a6f97", "#7aa9c4", "#9a8fb5", "#b9c4cc", "#dddcd5"]
        height = 0.8 / len(rows)
        for number, (name, values) in enumerate(rows):
            label = re.sub(r"\s*\(.*?\)|[*`]", "", name)
            places = [i + number * height for i in range(len(splits))]
            right.barh(
                places,
                [value or 0 for value in values],
                height * 0.92,
                color=colours[number % len(colours)],
                label=label,
            )
            for place, value in zip(places, values, strict=True):
                text = "-" if value is None else f"{value:.3f}"
                right.text((value or 0) + 0.008, place, text, va="center", fontsize=8.5)
        right.set_yticks([i + 0.4 - height / 2 for i in range(len(splits))], splits)
        right.invert_yaxis()
        right.set_xlim(0, 0.86)
        right.set_xlabel("Pearson correlation on test pairs (Costanzo 2010)")
        right.legend(frameon=False, fontsize=8, loc="lower right")
        right.spines[["top", "right"]].set_visible(False)
        figure.savefig(PICTURE, metadata={"Date": None}, facecolor="white")


def _schema(axes: Any) -> None:
    """Draw a pair with the measured pairs next to it."""
    axes.set_xlim(-1.5, 1.5)
    axes.set_ylim(-1.25, 1.3)
    axes.axis("off")
    genes = {"a": (-0.95, 0.1), "b": (0.95, 0.1), "a'": (-0.95, -0.95), "b'": (0.95, -0.95)}
    measured = {"color": "#2a6f97", "linewidth": 2.2}
    for one, other in (("a'", "b"), ("a", "b'"), ("a'", "b'")):
        axes.plot(*zip(genes[one], genes[other], strict=True), **measured)
    for one, other in (("a", "a'"), ("b", "b'")):
        axes.plot(*zip(genes[one], genes[other], strict=True), color="#8a8a8a", linestyle=":")
    axes.plot(
        *zip(genes["a"], genes["b"], strict=True), color="#c1440e", linewidth=2.4, dashes=(4, 2)
    )
    for name, (x, y) in genes.items():
        axes.plot(x, y, "o", markersize=25, color="white", markeredgecolor="#1d1f21")
        axes.text(x, y, f"{name}Δ", ha="center", va="center")
    axes.text(0, 0.2, "never measured: predicted", ha="center", color="#c1440e")
    axes.text(0, -1.18, "measured interactions", ha="center", color="#2a6f97")
    axes.text(-1.45, -0.43, "networks", rotation=90, va="center", color="#5c6167")
    axes.text(
        0,
        0.85,
        "Delete two genes: is the strain sicker or\nfitter than both single mutants suggest?",
        ha="center",
        va="center",
        fontweight="bold",
    )


if __name__ == "__main__":
    draw()
