"""Print the functions that a command calls, in the order in which a reader meets them.

``python -m deltacell_dev.walks training`` runs a small training and prints every function of
deltacell that it calls, once, where it is called first, grouped by file. The walks are those of
docs/architecture.md: ``training``, ``explanation`` and ``ranking``.

A walk visits a file when a function of another file calls, for the first time, a class or a
function of it. The methods of a class are one thing, which is read once; and a function that calls
several things of a file makes one visit, since its reader has both files open. A file that is
visited n times is returned to n - 1 times. A function that goes on after a call does not return to
its file: its reader has never closed it. Not visited are files of `base`, whose functions every
package uses and a reader knows by name, as those of NumPy.

What runs while a module is imported, such as decorators, is no part of a walk, so a list does not
depend on what was imported before.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import deltacell

KNOWN_BY_NAME = "base/"
_PREFIX = f"{Path(deltacell.__file__).parent}/"
SETTINGS = (
    *("experiment=demo", "data.synthetic_genotypes=100", "data.batch_size=32", "model.hidden=4"),
    *("trainer.epochs=1", "trainer.threads=1", "trainer.figures_every=0"),
    *("trainer.progress=false", "loggers.tensorboard=false", "split.method=random"),
)


@dataclass(frozen=True)
class Function:
    """A function of deltacell, as a walk shows it."""

    file: str  # relative to src/deltacell
    name: str  # qualified, such as ``Loop.run``
    line: int


@dataclass(frozen=True)
class Step:
    """The first call of a function on a walk."""

    function: Function
    caller: Function | None  # the nearest function of deltacell around it; None for the first

    @property
    def enters_file(self) -> bool:
        """Whether a reader has to open the file of the function."""
        return self.caller is None or self.caller.file != self.function.file

    @property
    def topic(self) -> str:
        """The class or function at the top level of the file that a reader reads."""
        return self.function.name.partition(".")[0]


def steps_of(work: Callable[[], object]) -> list[Step]:
    """Call a function; return the first call of each function of deltacell that runs.

    Comprehensions and lambdas are left out, as they are read with the function around them.
    """
    called: dict[Function, Step] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        """Keep the first call of each function."""
        if event == "call":
            function = _function_of(frame)
            if function is None or function in called:
                return
            if not _is_at_import(frame):
                called[function] = Step(function, _caller_of(frame))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return list(called.values())


def _function_of(frame: FrameType) -> Function | None:
    """Return the function of a frame, or None if it is not one of deltacell."""
    code = frame.f_code
    is_ours = code.co_filename.startswith(_PREFIX) and not code.co_name.startswith("<")
    if not is_ours:
        return None
    file = code.co_filename.removeprefix(_PREFIX)
    return Function(file, code.co_qualname, code.co_firstlineno)


def _caller_of(frame: FrameType) -> Function | None:
    """Return the nearest function of deltacell around a frame; libraries in between are skipped."""
    outer = frame.f_back
    while outer is not None:
        function = _function_of(outer)
        if function is not None:
            return function
        outer = outer.f_back
    return None


def _is_at_import(frame: FrameType) -> bool:
    """Return whether a call is made while a module is imported."""
    outer = frame.f_back
    while outer is not None and outer.f_code is not steps_of.__code__:
        if outer.f_code.co_name == "<module>":
            return True
        outer = outer.f_back
    return False


def visits(steps: Sequence[Step]) -> dict[str, list[Step]]:
    """Return the visits to each file outside `base`, by their first steps; see the module."""
    visits_of_file: dict[str, list[Step]] = {}
    known: set[tuple[str, str]] = set()  # files with their classes and functions
    for step in steps:
        file = step.function.file
        if not step.enters_file or file.startswith(KNOWN_BY_NAME):
            continue
        earlier = visits_of_file.setdefault(file, [])
        is_known = (file, step.topic) in known
        is_open = any(step.caller == visit.caller for visit in earlier)
        known.add((file, step.topic))
        if not is_known and not is_open:
            earlier.append(step)
    return visits_of_file


def returns(steps: Sequence[Step]) -> dict[str, int]:
    """Return how often a walk returns to each file that it visits, see the module."""
    return {file: len(of_file) - 1 for file, of_file in visits(steps).items()}


def _training(folder: Path) -> Callable[[], object]:
    from deltacell.train.config.compose import compose
    from deltacell.train.run import train

    return lambda: train(compose([*SETTINGS, f"directory={folder / 'run'}"]))


def _explanation(folder: Path) -> Callable[[], object]:
    from deltacell.profile.explain import explain

    trace = folder / "trace.json"
    trace.write_bytes(files("deltacell_dev.bench").joinpath("samples", "trace.txt").read_bytes())
    return lambda: explain(trace)


def _ranking(folder: Path) -> Callable[[], object]:
    from deltacell.api.rank import rank

    run = folder / "run"
    _training(folder)()
    return lambda: rank(run, top=5, out=folder / "ranking.parquet", progress=False)


WALKS = {"training": _training, "explanation": _explanation, "ranking": _ranking}


def walk(name: str) -> list[Step]:
    """Return the steps of a walk, see `steps_of`."""
    with tempfile.TemporaryDirectory() as folder:
        return steps_of(WALKS[name](Path(folder)))


def lines(steps: Sequence[Step]) -> Iterator[str]:
    """Yield the lines of a listing: files, and below each the functions that are read there."""
    for file, group in groupby(steps, lambda step: step.function.file):
        yield file
        for step in group:
            yield f"  {step.function.line:>4}  {step.function.name}"


def topics_by_file(steps: Sequence[Step]) -> dict[str, list[str]]:
    """Return by what classes and functions a walk enters each file, in the order of a reader."""
    topics: dict[str, list[str]] = {}
    for step in steps:
        of_file = topics.setdefault(step.function.file, [])
        if step.enters_file and step.topic not in of_file:
            of_file.append(step.topic)
    return topics


def summary(name: str) -> str:
    """Return how often a walk returns to each file, and by what it enters each, as JSON."""
    steps = walk(name)
    return json.dumps({"returns": returns(steps), "topics": topics_by_file(steps)})


def main() -> None:
    """Print the walks that the command names, all by default."""
    for name in sys.argv[1:] or WALKS:
        print(f"# {name}\n")
        steps = walk(name)
        for line in lines(steps):
            print(line)
        visits_of_file = visits(steps)
        print(
            f"\n{len(steps)} functions; {len(visits_of_file)} files are visited; returns to files:"
        )
        for file, of_file in sorted(visits_of_file.items(), key=lambda entry: -len(entry[1])):
            if len(of_file) > 1:
                topics = ", ".join(visit.topic for visit in of_file)
                print(f"  {len(of_file) - 1:>4}  {file}: {topics}")
        print()


if __name__ == "__main__":
    main()
