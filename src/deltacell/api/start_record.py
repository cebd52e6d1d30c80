"""Which files and settings the results of `start` are of, so that no others are mixed in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deltacell.base.errors import InputError
from deltacell.base.files import TEMPORARY, read_json, write_json
from deltacell.base.text import listed
from deltacell.profile.record import RUN_FILE
from deltacell.storage import MANIFEST, remove, sha256_of_file
from deltacell.train.config import Config
from deltacell.train.places import Change, changes
from deltacell.train.run_config import may_change, resumed_config
from deltacell.train.run_directory import remove_run

# Results in the output folder; a stage whose result exists is not repeated.
DATA = "data"
RUN = "run"
REFITTED = "refitted"
SOURCES = "sources.json"
TABLES = "evaluation.md"
EVALUATION = "evaluation.json"
PAGE = "ranking.html"
RANKING = "ranking.parquet"
CSV = "ranking.csv"

OF_RUN = (TABLES, EVALUATION, PAGE, CSV, RANKING)
"""What is made from the run."""

_MOST_LISTED = 5  # changed files that an error names


def check_sources(
    folder: Path,
    out: Path,
    columns: Sequence[str] = (),
    *,
    overwrite: bool,
) -> None:
    """Raise unless ``out`` is new or was made from the files of a folder, and record these.

    They have to be read with the same meaning of their ``columns``. With ``overwrite``, results of
    other files are removed.
    """
    _check_folders(folder, out)
    record = out / SOURCES
    if record.is_file():
        recorded = read_json(record, what="the list of sources")
        changed = _changed_files(folder, recorded)
        before = recorded.get("columns", []) if isinstance(recorded, dict) else []
        if not changed and before == list(columns):
            return
        if not changed and not overwrite:
            message = f"the tables were read with other --columns: {' and '.join(before) or 'none'}"
            fix = "Choose another --out, or replace the results with --overwrite."
            raise InputError(message, code="other-columns", where=out, fix=fix)
        if not overwrite:
            names = listed(changed[:_MOST_LISTED])
            message = f"the results were made from other files than those in {folder}: {names}"
            fix = "Choose another --out, or replace the results with --overwrite."
            raise InputError(message, code="sources-changed", where=out, fix=fix, files=changed)
        _remove_results(out)
        remove(out / DATA, "import")
    files = {str(path.relative_to(folder)): _facts_of_file(path) for path in files_of(folder)}
    sources = {"files": files, **({"columns": list(columns)} if columns else {})}
    write_json(record, sources, what="the list of sources")


def check_results(out: Path, config: Config, *, overwrite: bool) -> None:
    """Raise if the results in ``out`` are of other settings; with ``overwrite``, remove them."""
    run = out / RUN
    has_run = (run / RUN_FILE).is_file()
    has_results = any((out / name).exists() for name in OF_RUN)
    if not has_run and not has_results:
        return
    changed: list[Change] = []
    if has_run:
        changed = [change for change in changes(resumed_config(run), config) if _decides(change)]
        if not changed:
            return
    if overwrite:
        _remove_results(out)
        return
    message = "the run that these results were made from is missing, so its settings are unknown"
    if changed:
        message = f"these are the results of other settings: {'; '.join(map(str, changed))}"
    fix = "Choose another --out, repeat the earlier settings, or replace them with --overwrite."
    raise InputError(message, code="other-settings", where=out, fix=fix, changes=changed)


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that an import may read: those that are not hidden."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in paths if not _is_hidden(path.relative_to(folder))]


def _check_folders(folder: Path, out: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder of tables", code="no-such-folder", where=out)
    if out.resolve().is_relative_to(folder.resolve()):
        message = "the results would be among the sources; choose another --out"
        raise InputError(message, code="out-in-sources", where=out)
    if (folder / MANIFEST).is_file():
        message = f"{folder} is an import; train on it"
        raise InputError(message, code="already-imported", where=out)
    is_of_start = (out / SOURCES).is_file()
    if not is_of_start and out.exists() and any(_entries_of(out)):
        message = "the folder is not empty; choose another --out"
        raise InputError(message, code="not-empty", where=out)


def _entries_of(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder, without the temporary files that a killed process left there."""
    return (entry for entry in folder.iterdir() if not entry.name.endswith(TEMPORARY))


def _decides(change: Change) -> bool:
    """Return whether a changed setting can change the results."""
    if change.key in ("trainer.epochs", "trainer.patience"):
        return True
    return change.key != "data.folder" and not may_change(change.key)


def _remove_results(out: Path) -> None:
    """Remove what was made from the run, and then the run; a kill leaves no result without it."""
    for name in OF_RUN:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / f"{RANKING}.partial", ignore_errors=True)
    for name in (REFITTED, RUN):
        if (out / name / RUN_FILE).is_file():
            remove_run(out / name)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _facts_of_file(path: Path) -> dict[str, Any]:
    state = path.stat()
    return {
        "bytes": state.st_size,
        "modified": state.st_mtime_ns,
        "sha256": sha256_of_file(path),
    }


def _changed_files(folder: Path, record: Any) -> list[str]:
    """Return the files that were added, removed or changed since they were recorded.

    A file that was copied may have another time, so its content counts.
    """
    recorded = record.get("files") if isinstance(record, dict) else None
    if isinstance(recorded, list):  # as earlier versions wrote it, without checksums
        recorded = {name: {"bytes": size, "modified": time} for name, size, time in recorded}
    if not isinstance(recorded, dict):
        return [SOURCES]
    present = {str(path.relative_to(folder)): path for path in files_of(folder)}
    removed = {name for name in recorded if name not in present and not _is_hidden(Path(name))}
    changed = {name for name, path in present.items() if not _is_as(path, recorded.get(name))}
    return sorted(removed | changed)


def _is_as(path: Path, facts: Mapping[str, Any] | None) -> bool:
    """Return whether a file is as it was when some facts of it were recorded."""
    state = path.stat()
    if facts is None or facts["bytes"] != state.st_size:
        return False
    is_untouched: bool = facts["modified"] == state.st_mtime_ns
    return is_untouched or facts.get("sha256") == sha256_of_file(path)
