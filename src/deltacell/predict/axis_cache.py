"""What was made of some axes of blocks, kept while blocks go on using them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from deltacell.arrays import Ints


class Sized(Protocol):
    """Something that takes memory."""

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""


T = TypeVar("T", bound=Sized)


class AxisCache(Generic[T]):
    """The last results for some axes; an axis is the same where it is the same array.

    Parameters
    ----------
    most
        Bytes to keep at most, beside the last result.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        # The axes are kept with their results, so that no other array takes their place in memory.
        self._kept: OrderedDict[tuple[int, ...], tuple[tuple[Ints, ...], T]] = OrderedDict()

    def get(self, axes: tuple[Ints, ...], make: Callable[[], T]) -> T:
        """Return what was made of the axes, or make it.

        Parameters
        ----------
        axes
            One or more.
        make
            Called where there is nothing of them.
        """
        key = tuple(map(id, axes))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][1]
        made = make()
        self._kept[key] = axes, made
        self._bytes += made.nbytes
        while self._bytes > self._most and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1].nbytes
        return made
