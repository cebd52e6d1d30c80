"""`deltacell bench ...`: measure speed, memory and accuracy on this machine.

Each command is a table of ``bench.toml``, and runs a function of `deltacell.bench`.
"""

from __future__ import annotations

import inspect
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from deltacell.cli.program import Json, option, split_names, write_json

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
    module, _, function = bench.get("runs", f"{name}.run").partition(".")
    with progress_bar() as process.progress:
        found = getattr(import_module(f"deltacell.bench.{module}"), function)(**given)
    command = shlex.join(["deltacell", *sys.argv[1:]])
    measured = {**found.get("ratios", {}), **found.pop("measured", {})}
    limits = {} if given.get("quick") else bench.get("bars", {})
    found["bars"] = process.bars(limits, measured)
    result = {"benchmark": name, "command": command, **found, "machine": process.machine()}
    write_json(json, result)
    print_bench(result, bench["title"])
    if found.get("total", {}).get("failures"):
        raise typer.Exit(1)


def _command(name: str, bench: Mapping[str, Any], shared: Mapping[str, Any]) -> Callable[..., None]:
    """Return a function whose parameters typer reads as the options."""
    command: Any = partial(measure, name, bench)
    typed: dict[str, tuple[Any, Any]] = {}
    for key, own in bench["options"].items():
        about = {**shared.get(key, {}), **own}
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
    command.__doc__ = f"{bench['help'].strip()}\n\n{example}"
    return cast(Callable[..., None], command)


_BENCHES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SHARED = _BENCHES.pop("shared")
COMMANDS = {name: _command(name, bench, _SHARED) for name, bench in _BENCHES.items()}
