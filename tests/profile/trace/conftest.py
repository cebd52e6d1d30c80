"""Traces built by hand, for tests that are not packages and so cannot import each other."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).with_name("made.py")
if "made" not in sys.modules:
    _SPEC = importlib.util.spec_from_file_location("made", _PATH)
    assert _SPEC is not None
    assert _SPEC.loader is not None
    _MODULE = importlib.util.module_from_spec(_SPEC)
    sys.modules["made"] = _MODULE
    _SPEC.loader.exec_module(_MODULE)
