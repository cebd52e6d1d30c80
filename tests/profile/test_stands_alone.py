"""The package uses nothing of the rest of the house."""

from __future__ import annotations

import ast
from pathlib import Path

import deltacell.profile

ALLOWED = {"errors", "arrays", "words", "files", "profile"}
FILES = sorted(Path(deltacell.profile.__file__).parent.rglob("*.py"))


def test_it_imports_none_of_the_others():
    assert len(FILES) > 5
    for file in FILES:
        tree = ast.parse(file.read_text())
        imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        plain = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
        imported += [alias.name for node in plain for alias in node.names]
        parts = [name.split(".") for name in imported if name is not None]
        ours = {part[1] if len(part) > 1 else "" for part in parts if part[0] == "deltacell"}
        assert ours <= ALLOWED, file
