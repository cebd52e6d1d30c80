"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch


def machine() -> dict[str, Any]:
    """Return the machine and the versions that matter to a measurement."""
    return {
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
