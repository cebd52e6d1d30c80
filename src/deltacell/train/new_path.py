"""Where a new run is made."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from deltacell.train.config import Config


def new_path(config: Config) -> Path:
    """Return the directory of a new run: the config's, or one made of name, seed and time."""
    if config.directory is not None:
        return Path(config.directory)
    time = datetime.now().strftime("%Y%m%d-%H%M%S")
    stem = Path("runs") / f"{config.name}-seed{config.seed}-{time}"
    path, n = stem, 1
    while path.exists():
        n += 1
        path = stem.with_name(f"{stem.name}-{n}")
    return path
