"""Results written for other programs, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltacell import files
from deltacell.errors import InputError


def write_json(path: Path | None, data: Mapping[str, Any]) -> None:
    """Write a result as JSON if a path is given."""
    if path is not None:
        write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n", what="the result")


def write_text(path: Path, text: str, *, what: str) -> None:
    """Write a text file and create its folder; ``what`` names it in errors."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{what} cannot be written: {error.strerror}", code="not-writable", where=path
        ) from error
    files.write_text(path, text, what=what)
