"""With which code a run was made."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = (
    *("deltacell", "torch", "lightning", "lightgbm", "torch-geometric"),
    *("numpy", "polars", "pyarrow"),
)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results may depend on, by name."""
    return {
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PACKAGES},
    }


def commit(folder: Path | None = None) -> str | None:
    """Return the commit of the checkout that deltacell runs from; None where it is not in one.

    ``-dirty`` follows where files of it are not as they were committed.

    Parameters
    ----------
    folder
        The package's folder, unless it is another.
    """
    folder = Path(__file__).resolve().parents[1] if folder is None else folder
    # A package that was installed somewhere below another project's checkout is not of that one.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
