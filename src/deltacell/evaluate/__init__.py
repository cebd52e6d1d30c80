"""The former place of `deltacell.evaluation`, kept for one release.

Importing it makes ``deltacell.evaluate`` this module, so the module is the verb too.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from deltacell.base.moved import moved

__getattr__ = moved(
    "deltacell.evaluate",
    "deltacell.evaluation",
    renamed={
        "evaluate": "deltacell.evaluation.evaluate_predictions",
        "draw_figures": "deltacell.api.figures.draw_figures",
    },
)


class _Verb(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Test runs and baselines on the same rows, as `deltacell.evaluate` does."""
        return import_module("deltacell.api.evaluate").evaluate(*args, **options)


sys.modules[__name__].__class__ = _Verb
