"""The plain PyTorch loop of the docs is ten lines, runs, and learns."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import torch

from deltacell.models import DangoLoss, LossValue

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "plain-loop.md"


def _block() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    return str(code)


def test_it_is_ten_lines() -> None:
    code = _block()
    imports = [n for n in ast.parse(code).body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert len([line for line in code.splitlines() if line.strip()]) - len(imports) == 10


def test_it_learns() -> None:
    torch.manual_seed(0)
    seen: list[LossValue] = []

    class Watched(DangoLoss):
        def __call__(self, *args: object, **settings: object) -> LossValue:
            seen.append(super().__call__(*args, **settings))  # type: ignore[arg-type]
            return seen[-1]

    code = compile(_block().replace("DangoLoss()", "Watched()"), str(PAGE), "exec")
    exec(code, {"__name__": "__docs__", "Watched": Watched})
    reconstruction = [float(value.parts["reconstruction"]) for value in seen]
    assert len(seen) == 5 * 16
    assert reconstruction[-1] < 0.8 * reconstruction[0]
    assert all(torch.isfinite(value.total) for value in seen)
