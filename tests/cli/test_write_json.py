"""Results for other programs are whole or as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltacell import files
from deltacell.cli.program import write_json
from deltacell.errors import InputError


def test_what_was_there_stays_where_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new" / "result.json"
    write_json(path, {"gene": "ho\N{GREEK CAPITAL LETTER DELTA}"})
    before = path.read_bytes()

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "flush", full)
    with pytest.raises(InputError):
        write_json(path, {"gene": "another"})
    assert path.read_bytes() == before
    assert json.loads(before) == {"gene": "hoΔ"}
    assert [entry.name for entry in path.parent.iterdir()] == ["result.json"]
