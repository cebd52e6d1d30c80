"""What shows the trainings that the verbs begin."""

from __future__ import annotations

from typing import cast

from deltacell.base.rendering import report_module
from deltacell.train.rendering import Rendering


def training_rendering() -> Rendering:
    """Return `deltacell.report.training`: progress bars and figures."""
    return cast(Rendering, report_module("training"))
