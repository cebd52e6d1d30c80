"""Measure what makes code slow to read, by package.

``python -m deltacell_dev.readability [FOLDER]`` prints a table; the folder is ``src`` by default.
All measures are taken from syntax trees, so no formatter changes them:

- tuples: assignments of one tuple to another (``a, b = f(x), g(y)``), which are two statements
- unpacked: comprehensions and generators that are unpacked into names
- nested: comprehensions with another one inside, or with two loops
- nodes: syntax nodes of a simple statement, 90th percentile
- vague: names that fit every variable of a program, as a share of all bound names
- documented: public functions, methods and classes with a docstring
- Any: uses of ``typing.Any``

Tuples, unpacked, nested and Any are counted per 1,000 statements. `LIMITS` are the values that
tests/docs/test_readability.py holds for ``src``.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

VAGUE_NAMES = frozenset(
    (
        *("about", "asked", "at", "found", "given", "held", "here"),
        *("made", "mine", "one", "said", "there", "told"),
    )
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SIMPLE_STATEMENTS = (
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return),
    *(ast.Expr, ast.Raise, ast.Assert, ast.Delete),
)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
CONTEXTS = (ast.Load, ast.Store, ast.Del)  # nodes that say how a name is used, not what is written

LIMITS = {
    "tuples": 5.0,
    "unpacked": 0.5,
    "nested": 1.5,
    "nodes": 16.0,  # the aim is 15
    "vague": 0.5,
    "documented": 95.0,
    "Any": 10.0,
}
MOST_LOCALS = 20  # that a function may have
MANY_LOCALS = 15
MOST_FUNCTIONS_WITH_MANY_LOCALS = 10


@dataclass
class Reading:
    """The counts of some source files, and the measures that follow from them."""

    n_statements: int = 0
    n_bound_names: int = 0
    n_public: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    statement_sizes: list[int] = field(default_factory=list)

    def add(self, tree: ast.Module) -> None:
        """Count one file."""
        for node in ast.walk(tree):
            self._add_node(node)

    def _add_node(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self.n_statements += 1
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            self.counts["tuples"] += isinstance(node.value, ast.Tuple)
            self.counts["unpacked"] += isinstance(node.value, COMPREHENSIONS)
        if isinstance(node, COMPREHENSIONS):
            self.counts["nested"] += _is_nested(node)
        if isinstance(node, SIMPLE_STATEMENTS) and not _is_docstring(node):
            self.statement_sizes.append(_size(node))
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_"):
            self.n_public += 1
            self.counts["documented"] += ast.get_docstring(node) is not None
        if isinstance(node, ast.Name):
            self.counts["Any"] += node.id == "Any"
            if isinstance(node.ctx, ast.Store):
                self.n_bound_names += 1
                self.counts["vague"] += node.id in VAGUE_NAMES

    def measures(self) -> dict[str, float]:
        """Return the measures by name; a package without statements has 0 everywhere."""
        per_thousand = 1000 / max(self.n_statements, 1)
        sizes = sorted(self.statement_sizes) or [0]
        return {
            "tuples": self.counts["tuples"] * per_thousand,
            "unpacked": self.counts["unpacked"] * per_thousand,
            "nested": self.counts["nested"] * per_thousand,
            "nodes": float(sizes[int(0.9 * (len(sizes) - 1))]),
            "vague": 100 * self.counts["vague"] / max(self.n_bound_names, 1),
            "documented": 100 * self.counts["documented"] / max(self.n_public, 1),
            "Any": self.counts["Any"] * per_thousand,
        }


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_nested(comprehension: ast.AST) -> bool:
    n_loops = sum(isinstance(node, ast.comprehension) for node in ast.walk(comprehension))
    return n_loops > 1


def _size(statement: ast.stmt) -> int:
    return sum(not isinstance(node, CONTEXTS) for node in ast.walk(statement))


def read_tree(folder: Path) -> dict[str, Reading]:
    """Return the readings of a source folder by package, with the whole under ``all``.

    The package is the second part of a path, as in ``src/deltacell/PACKAGE/file.py``.
    """
    readings: defaultdict[str, Reading] = defaultdict(Reading)
    whole = Reading()
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts = path.relative_to(folder).parts
        package = parts[1] if len(parts) > 2 else "top level"
        readings[package].add(tree)
        whole.add(tree)
    return {**readings, "all": whole}


def functions_with_locals(folder: Path, more_than: int) -> list[str]:
    """Return the places of functions with more than this number of local variables, by ruff."""
    options = ["--preview", "--isolated", "--select", "PLR0914", "--output-format", "json"]
    options += ["--config", f"lint.pylint.max-locals={more_than}", "--no-cache", "--exit-zero"]
    command = [sys.executable, "-m", "ruff", "check", *options, str(folder)]
    output = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    return [
        f"{Path(finding['filename']).relative_to(folder.resolve())}:{finding['location']['row']}"
        for finding in json.loads(output)
    ]


def beyond_limits(measures: dict[str, float]) -> Iterator[str]:
    """Yield a line for every measure that does not keep its limit."""
    for name, limit in LIMITS.items():
        is_kept = measures[name] >= limit if name == "documented" else measures[name] <= limit
        if not is_kept:
            yield f"{name}: {measures[name]:.2f}, limit {limit:g}"


def table(readings: dict[str, Reading]) -> Iterable[str]:
    """Yield the lines of a table with one row per package and the limits below."""
    yield f"{'package':<12}" + "".join(f"{name:>12}" for name in LIMITS)
    for package, reading in readings.items():
        measures = reading.measures()
        yield f"{package:<12}" + "".join(f"{measures[name]:>12.1f}" for name in LIMITS)
    yield f"{'limit':<12}" + "".join(f"{limit:>12.1f}" for limit in LIMITS.values())


def main() -> None:
    """Print the table, and the functions with many local variables."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "src"
    for line in table(read_tree(folder)):
        print(line)
    places = functions_with_locals(folder.resolve(), MANY_LOCALS)
    print(f"\n{len(places)} functions with more than {MANY_LOCALS} local variables")
    for place in places:
        print(f"  {place}")


if __name__ == "__main__":
    main()
