"""Compare a result with the file in tests/golden that recorded it.

`pytest --golden-write` writes the files anew; review the difference with `git diff tests/golden`.
"""

import difflib
import json
import math
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "golden"
WRITE_OPTION = "--golden-write"
TOLERANCE = 1e-5
"""Default relative tolerance of floats, which differ in their last digits between machines."""

WIDTH = 100
"""Of the lines in a file; what is longer has one item per line."""

_is_writing = False


def write_files(is_writing: bool) -> None:
    """Let `check` write its files instead of comparing with them."""
    global _is_writing
    _is_writing = is_writing


def check(name: str, value: Any, *, tolerance: float = TOLERANCE, floor: float = 0.0) -> None:
    """Fail with a diff unless a value equals the one in ``tests/golden/NAME.json``.

    The value is what JSON can hold. Keys, their order, texts, whole numbers and types must be
    equal; floats may differ by `tolerance` times the larger of the two, or by `floor`, which is for
    numbers that are zero but for rounding.
    """
    path = FOLDER / f"{name}.json"
    text = _as_text(value)
    if _is_writing:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return
    if not path.is_file():
        pytest.fail(f"{_shown(path)} does not exist; write it with: {_command()}", pytrace=False)
    golden_text = path.read_text(encoding="utf-8")
    golden = json.loads(golden_text)
    new_text = _as_text(_with_close_floats_of(golden, json.loads(text), tolerance, floor))
    if new_text != golden_text:
        pytest.fail(_difference(path, golden_text, new_text), pytrace=False)


def _as_text(value: Any) -> str:
    return _json_text(value, indent="") + "\n"


def _json_text(value: Any, indent: str) -> str:
    """Return JSON with one item per line, and small objects and lists on a single line."""
    text = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict | list | tuple) or len(indent) + len(text) <= WIDTH:
        return text
    deeper = indent + "  "
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key, ensure_ascii=False)}: {_json_text(item, deeper)}"
            for key, item in value.items()
        ]
        first, last = "{}"
    else:
        items = [_json_text(item, deeper) for item in value]
        first, last = "[]"
    lines = f",\n{deeper}".join(items)
    return f"{first}\n{deeper}{lines}\n{indent}{last}"


def _with_close_floats_of(golden: Any, new: Any, tolerance: float, floor: float) -> Any:
    """Return the new value, with the golden one in place of every float that is close to it."""
    if isinstance(golden, float) and isinstance(new, float):
        is_close = math.isclose(golden, new, rel_tol=tolerance, abs_tol=floor)
        return golden if is_close else new
    if isinstance(golden, dict) and isinstance(new, dict):
        return {
            key: _with_close_floats_of(golden.get(key), item, tolerance, floor)
            for key, item in new.items()
        }
    if isinstance(golden, list) and isinstance(new, list):
        counterparts = [*golden, *[None] * len(new)]
        return [
            _with_close_floats_of(counterpart, item, tolerance, floor)
            for counterpart, item in zip(counterparts, new, strict=False)
        ]
    return new


def _difference(path: Path, golden_text: str, new_text: str) -> str:
    """Return what a developer has to see: the lines that changed, and how to accept them."""
    lines = difflib.unified_diff(
        golden_text.splitlines(),
        new_text.splitlines(),
        fromfile=_shown(path),
        tofile="now",
        lineterm="",
    )
    advice = f"If the change is meant, write the file anew: {_command()}"
    return "\n".join([f"{_shown(path)} differs.", *lines, advice])


def _command() -> str:
    return f"pytest {WRITE_OPTION} TEST"


def _shown(path: Path) -> str:
    return path.relative_to(FOLDER.parents[1]).as_posix()
