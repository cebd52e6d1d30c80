"""Compare the files of a wheel with the sources of the package.

``python devtools/deltacell_dev/wheel_contents.py FILE.whl`` needs no other package, and ends with
an error if the wheel lacks a file or contains another one.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
LARGEST_FILE = 100_000  # bytes, unpacked: a larger file is data, not source


def expected_files(sources: Path) -> set[str]:
    """Return the files of a source folder as a wheel names them, without what Python caches."""
    files = (path for path in sources.rglob("*") if path.is_file())
    return {
        path.relative_to(sources).as_posix() for path in files if "__pycache__" not in path.parts
    }


def problems(wheel: Path, sources: Path) -> list[str]:
    """Return a sentence for each way in which a wheel differs from the sources; none is good."""
    with zipfile.ZipFile(wheel) as archive:
        n_bytes = {entry.filename: entry.file_size for entry in archive.infolist()}
    packed = set(n_bytes)
    metadata = {name for name in packed if PurePosixPath(name).parts[0].endswith(".dist-info")}
    expected = expected_files(sources)
    sentences = [f"the wheel lacks {name}" for name in sorted(expected - packed)]
    unexpected = packed - metadata - expected
    sentences += [f"the wheel contains {name}" for name in sorted(unexpected)]
    for name in sorted(packed - metadata):
        if n_bytes[name] > LARGEST_FILE:
            sentences.append(f"{name} has {n_bytes[name]:,} bytes, more than {LARGEST_FILE:,}")
    return sentences


def main() -> None:
    """Check the wheel that the command names."""
    sentences = problems(Path(sys.argv[1]), ROOT / "src")
    if sentences:
        raise SystemExit("\n".join(sentences))
    print("the wheel has all files of src, and no others")


if __name__ == "__main__":
    main()
