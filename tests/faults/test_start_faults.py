"""`deltacell start` goes on after a kill at its very beginning."""

from pathlib import Path

import pytest

from deltacell.api.start import SOURCES, steps
from deltacell.base.errors import InputError
from deltacell.base.files import TEMPORARY


def begin(folder: Path, out: Path) -> str:
    """Begin, as far as the first step; return its title."""
    title, _, _ = next(steps(folder, out, 5, [], print))
    return title


def test_a_start_that_was_killed_before_its_first_file_was_complete_begins_again(
    tmp_path: Path,
) -> None:
    folder, out = tmp_path / "tables", tmp_path / "results"
    folder.mkdir()
    (folder / "screen.tsv").write_text("gene1\tgene2\tscore\nA\tB\t1\n")
    out.mkdir()
    (out / f".{SOURCES}.0-1-abc{TEMPORARY}").write_text("{")
    assert begin(folder, out)
    assert (out / SOURCES).is_file()


def test_a_folder_of_somebody_else_is_still_refused(tmp_path: Path) -> None:
    folder, out = tmp_path / "tables", tmp_path / "results"
    folder.mkdir()
    (folder / "screen.tsv").write_text("gene1\tgene2\tscore\nA\tB\t1\n")
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError) as caught:
        begin(folder, out)
    assert caught.value.code == "not-empty"
