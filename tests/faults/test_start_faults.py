"""`deltacell start` goes on after a kill at its very beginning."""

from pathlib import Path

import pytest

from deltacell.api.start_record import SOURCES, check_sources
from deltacell.base.errors import InputError
from deltacell.base.files import TEMPORARY


def test_a_start_that_was_killed_before_its_first_file_was_complete_begins_again(
    tmp_path: Path,
) -> None:
    folder, out = tmp_path / "tables", tmp_path / "results"
    folder.mkdir()
    (folder / "screen.tsv").write_text("gene1\tgene2\tscore\nA\tB\t1\n")
    out.mkdir()
    (out / f".{SOURCES}.0-1-abc{TEMPORARY}").write_text("{")
    check_sources(folder, out, overwrite=False)
    assert (out / SOURCES).is_file()


def test_a_folder_of_somebody_else_is_still_refused(tmp_path: Path) -> None:
    folder, out = tmp_path / "tables", tmp_path / "results"
    folder.mkdir()
    (folder / "screen.tsv").write_text("gene1\tgene2\tscore\nA\tB\t1\n")
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError) as caught:
        check_sources(folder, out, overwrite=False)
    assert caught.value.code == "not-empty"
