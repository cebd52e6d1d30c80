"""Print the lowest versions of the dependencies that pyproject.toml allows, as requirements."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Tools that check the sources; the tests do not use them.
NOT_USED_BY_TESTS = ("hatchling", "import-linter", "mkdocs", "mypy", "ruff")


def lowest_versions(pyproject: Path) -> list[str]:
    """Return requirements such as ``numpy==1.26`` for the core and all extras, sorted."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    requirements = set(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements.update(extra)
    lowest = [requirement.replace(">=", "==") for requirement in sorted(requirements)]
    return [line for line in lowest if not line.startswith(NOT_USED_BY_TESTS)]


def main() -> None:
    """Print one requirement per line."""
    print("\n".join(lowest_versions(ROOT / "pyproject.toml")))


if __name__ == "__main__":
    main()
