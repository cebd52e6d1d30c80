"""The one call: where the time goes, or why B is slower than A."""

from __future__ import annotations

import os
from pathlib import Path

from deltacell.profile.explain.explanation import Explanation
from deltacell.profile.explain.one import explain_one
from deltacell.profile.explain.run_account import run_name
from deltacell.profile.explain.subject import Progress, open_subject
from deltacell.profile.explain.two import explain_two


def explain(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> Explanation:
    """Explain where the time of a training goes, or why B takes longer than A.

    Parameters
    ----------
    a, b
        Each a run's directory, a trace (plain or packed with gzip), or a directory with one trace
        a rank; of this program or of any PyTorch program.
    progress
        Called with a label, what is done and what there is.

    Returns
    -------
    The cause in a sentence, evidence, what to try, and the numbers as dataclasses and frames.
    """
    first = open_subject(
        a, name="A" if b is not None and _same_name(a, b) else None, progress=progress
    )
    if b is None:
        return explain_one(first)
    second = open_subject(b, name="B" if _same_name(a, b) else None, progress=progress)
    return explain_two(first, second)


def _same_name(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    return run_name(Path(a)) == run_name(Path(b))
