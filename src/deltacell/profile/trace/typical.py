"""The typical step of a trace: the one that is typical in all its parts, not in its length alone.

Two steps of one length can spend it differently: one waits for the loader, the other has a slow
backward. So every step is compared with the median of each part.
"""

from __future__ import annotations

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.profile.trace.categories import Category
from deltacell.profile.trace.device import PARTS, DeviceTime
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.steps import Steps


def typical_step(steps: Steps, host: HostTime, device: DeviceTime | None) -> int:
    """Return the index of the counted step whose parts are jointly nearest to their medians.

    The parts are the host's categories and, with a device, the parts of the device's time.
    """
    parts = _host_parts(steps, host)
    if device is not None:
        parts = np.concatenate([parts, device.steps.select(PARTS).to_numpy()], axis=1)
    counted = np.flatnonzero(steps.counted)
    return int(counted[nearest_to_medians(parts[counted])])


def nearest_to_medians(parts: Ints) -> int:
    """Return the row of ``parts`` [steps, parts] that is nearest to the medians of the columns.

    The distance is the sum of absolute differences, so large parts count for more. Of several
    nearest rows it is the first.
    """
    distance = np.abs(parts - np.median(parts, axis=0)).sum(axis=1)
    return int(distance.argmin())


def _host_parts(steps: Steps, host: HostTime) -> Ints:
    """Return the nanoseconds of each step by category, [steps, categories]."""
    parts = np.zeros((len(steps), len(Category)), dtype=np.int64)
    np.add.at(parts, (host.step, host.category), host.end - host.begin)
    return parts
