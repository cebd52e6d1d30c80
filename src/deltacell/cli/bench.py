"""`deltacell bench ...`: measure speed, memory and accuracy on this machine.

Each command is a table of ``bench.toml``, and runs a function of `deltacell.bench`, or one of
`deltacell_dev.bench`, which only a checkout of the sources has.
"""

from __future__ import annotations

import inspect
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from deltacell.base.errors import InputError
from deltacell.cli.program import Json, option, split_names, write_json

DEVELOPMENT = "deltacell_dev"
"""The package of the benchmarks that only developers run; no wheel contains it."""

KINDS: dict[str, Any] = {
    **{"int": int, "number": float, "flag": bool, "text": str, "names": str},
    **{"path": Path, "paths": list[Path]},
}


def measure(name: str, bench: Mapping[str, Any], json: Path | None, **options: Any) -> None:
    """Run a benchmark under a progress bar, then write and print its result."""
    from deltacell.bench import process
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    given = {key: value for key, value in options.items() if value is not None}
    for key in given:
        if bench["options"][key].get("kind") == "names":
            given[key] = split_names(given[key])
    run = function_of(name, bench)
    with progress_bar() as process.progress:
        found = run(**given)
    command = shlex.join(["deltacell", *sys.argv[1:]])
    measured = {**found.get("ratios", {}), **found.pop("measured", {})}
    limits = {} if given.get("quick") else bench.get("bars", {})
    found["bars"] = process.bars(limits, measured)
    result = {"benchmark": name, "command": command, **found, "machine": process.machine()}
    write_json(json, result)
    print_bench(result, bench["title"])
    if found.get("total", {}).get("failures"):
        raise typer.Exit(1)


def function_of(name: str, bench: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """Return the function that a benchmark runs."""
    package = DEVELOPMENT if bench.get("development", False) else "deltacell"
    if find_spec(package) is None:
        message = f"`deltacell bench {name}` measures deltacell itself and is not installed"
        fix = "It needs the sources: run `make setup` in a checkout of the repository."
        raise InputError(message, code="no-development-package", fix=fix)
    module, _, function = bench.get("runs", f"{name}.run").partition(".")
    run: Callable[..., dict[str, Any]]
    run = getattr(import_module(f"{package}.bench.{module}"), function)
    return run


def _command(name: str, bench: Mapping[str, Any], shared: Mapping[str, Any]) -> Callable[..., None]:
    """Return a function whose parameters typer reads as the options."""
    command: Any = partial(measure, name, bench)
    typed: dict[str, tuple[Any, Any]] = {}
    for key, own in bench["options"].items():
        about = own if "kind" in own else {**shared[key], **own}
        kind, default = KINDS[about["kind"]], about.get("default")
        if about["kind"] == "paths":
            default = inspect.Parameter.empty
        elif default is None:
            kind = kind | None
        words = f"--{key.rstrip('_').replace('_', '-')}"
        info: Any = option(about["help"], words, min=about.get("min"))
        if "argument" in about:
            info = typer.Argument(help=about["help"])
        typed[key] = Annotated[kind, info], default
    typed["json"] = Json, None
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(key, keyword, default=default, annotation=kind)
        for key, (kind, default) in typed.items()
    ]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {key: kind for key, (kind, _) in typed.items()}
    command.__name__ = name
    example = f"Example: deltacell bench {name} {bench['example']}"
    paragraphs = [bench["help"].strip(), example]
    if bench.get("development", False):
        paragraphs.insert(1, "It measures deltacell itself and needs a checkout of its sources.")
    command.__doc__ = "\n\n".join(paragraphs)
    return cast(Callable[..., None], command)


BENCHES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SHARED = BENCHES.pop("shared")
COMMANDS = {name: _command(name, bench, _SHARED) for name, bench in BENCHES.items()}
