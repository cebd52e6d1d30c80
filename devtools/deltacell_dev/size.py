"""Print files and lines of code, docstrings and comments by package.

It needs no other package: ``python devtools/deltacell_dev/size.py``.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("files", "lines", "code", "docstring", "comment", "blank")


def count_file(path: Path) -> Counter[str]:
    """Count the lines of one Python file by kind; every line is counted once."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    docstring: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if ast.get_docstring(node, clean=False) is not None and first is not None:
                docstring.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    comment = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT and lines[token.start[0] - 1].lstrip().startswith("#")
    }
    blank = {n for n, line in enumerate(lines, 1) if not line.strip()} - docstring
    kinds = {"docstring": len(docstring), "comment": len(comment), "blank": len(blank)}
    return Counter(files=1, lines=len(lines), code=len(lines) - sum(kinds.values()), **kinds)


def count_tree(folder: Path) -> dict[str, Counter[str]]:
    """Count a folder's Python files by package, with the sum under ``total``."""
    counted: dict[str, Counter[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        package = path.relative_to(folder).parent
        counts = count_file(path)
        for name in (package.as_posix(), "total"):
            counted.setdefault(name, Counter()).update(counts)
    counted["total"] = counted.pop("total")
    return counted


def main() -> None:
    """Print the tables."""
    for name in ("src", "devtools", "tests"):
        counted = count_tree(ROOT / name)
        print(f"{name + '/':<28}" + "".join(f"{column:>11}" for column in COLUMNS))
        for package, counts in counted.items():
            print(f"{package:<28}" + "".join(f"{counts[column]:>11,}" for column in COLUMNS))
        print()


if __name__ == "__main__":
    main()
