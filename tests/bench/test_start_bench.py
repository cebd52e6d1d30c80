"""Starting the program: what it loads, and the bench that times it."""

from __future__ import annotations

import subprocess
import sys

from deltacell.bench import start
from deltacell.cell import Cell


def test_the_bench_compares_with_numpy_and_has_its_bars(tmp_path):
    Cell.synthetic("demo").save(tmp_path / "cell")
    result = start.run(times=1, data=tmp_path / "cell")
    assert [row["command"] for row in result["rows"]] == ["import numpy", "help", "data info"]
    assert result["rows"][0]["times_import_numpy"] == 1
    assert set(result["bars"]) == {
        f"{name}: {what}" for name in start.BARS for what in ("cpu_seconds", "times_import_numpy")
    }


def test_help_and_data_info_load_neither_pytorch_nor_polars(tmp_path):
    Cell.synthetic("demo").save(tmp_path / "cell")
    for words in (["--help"], ["data", "info", str(tmp_path / "cell")]):
        code = (
            "import sys; from deltacell.cli.app import app\n"
            f"app({words!r}, standalone_mode=False)\n"
            "print([m for m in ('torch', 'polars', 'scipy') if m in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stderr.strip().endswith("[]"), done.stderr
