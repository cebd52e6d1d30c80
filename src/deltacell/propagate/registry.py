"""The strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from deltacell.errors import InputError, did_you_mean
from deltacell.propagate.auto import Auto
from deltacell.propagate.delta import Delta
from deltacell.propagate.dense import Dense
from deltacell.propagate.ladder import DeviceMask, EdgeMask, StoredEdges, StoredMasks, Subgraph
from deltacell.propagate.late import Late
from deltacell.propagate.protocol import Propagation
from deltacell.propagate.shared import Shared

STRATEGIES: Mapping[str, Callable[..., Propagation]] = MappingProxyType(
    {
        "shared": Shared,
        "delta": Delta,
        "late": Late,
        "auto": Auto,
        "dense": Dense,
        "subgraph": Subgraph,
        "edge_mask": EdgeMask,
        "stored_edges": StoredEdges,
        "stored_masks": StoredMasks,
        "device_mask": DeviceMask,
    }
)
"""What makes each strategy, by its name."""


def strategy(name: str, **options: Any) -> Propagation:
    """Return the strategy of a name.

    Parameters
    ----------
    name
        One of `STRATEGIES`.
    options
        Of the strategy, such as ``tile``.
    """
    if name not in STRATEGIES:
        raise InputError(
            f"there is no propagation '{name}'{did_you_mean(name, STRATEGIES)}; "
            f"there are {', '.join(STRATEGIES)}"
        )
    try:
        return STRATEGIES[name](**options)
    except TypeError as error:
        raise InputError(
            f"the propagation '{name}' does not take these options: {error}"
        ) from error
