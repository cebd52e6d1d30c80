"""Results for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deltacell.errors import InputError
from deltacell.files import new_file


def write_json(path: Path | None, data: Mapping[str, Any]) -> None:
    """Write a result where one was asked for, whole or not at all."""
    if path is None:
        return
    text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            temporary.write_bytes(text.encode())
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", where=path) from error
