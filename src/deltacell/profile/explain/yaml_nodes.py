"""YAML read node by node, so that what is wrong can be said with its line."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from deltacell.errors import InputError

LARGEST_FILE = 1 << 20


class Entry:
    """A value of a YAML file and the line it is on; nothing but plain values is made of it.

    Parameters
    ----------
    node
        As YAML's safe loader composes it.
    file
        It was read from.
    name
        What it is called in errors.
    """

    def __init__(self, node: Any, file: Path, name: str) -> None:
        self._node = node
        self.file = file
        self.name = name

    @property
    def line(self) -> int:
        """Counted from 1."""
        return int(self._node.start_mark.line) + 1

    @property
    def is_mapping(self) -> bool:
        """Whether it has keys."""
        return isinstance(self._node, yaml.MappingNode)

    @property
    def is_null(self) -> bool:
        """Whether nothing is given."""
        return bool(self._node.tag == "tag:yaml.org,2002:null")

    def wrong(self, what: str, fix: str | None = None) -> InputError:
        """Return an error about this value."""
        return InputError(what, where=self.file, line=self.line, fix=fix)

    def keys(self, known: Sequence[str]) -> dict[str, Entry]:
        """Return the values by key; a key that is not known is an error, and so is one twice."""
        if not self.is_mapping:
            raise self.wrong(f"{self.name} is {self._shown()}; expected the keys {_or(known)}")
        found: dict[str, Entry] = {}
        for key, value in self._node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else "?"
            entry = Entry(value, self.file, f"{self.name}.{name}" if self.name else name)
            line = int(key.start_mark.line) + 1
            if name not in known:
                near = difflib.get_close_matches(name, known, 1, 0.6)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                inside = f" in {self.name}" if self.name else ""
                raise InputError(
                    f"there is no key '{name}'{inside}{hint}",
                    where=self.file,
                    line=line,
                    fix=f"There are: {', '.join(known)}",
                )
            if name in found:
                raise InputError(f"the key '{name}' is there twice", where=self.file, line=line)
            found[name] = entry
        return found

    def items(self) -> list[Entry]:
        """Return the values of a list."""
        if not isinstance(self._node, yaml.SequenceNode):
            raise self.wrong(f"{self.name} is {self._shown()}; expected a list")
        return [
            Entry(node, self.file, f"{self.name}[{i}]") for i, node in enumerate(self._node.value)
        ]

    def text(self) -> str:
        """Return a text that is not empty."""
        value = self._scalar()
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{self.name} is {self._shown()}; expected a text")
        return value.strip()

    def one_of(self, choices: Sequence[str]) -> str:
        """Return one of these texts."""
        value = self._scalar()
        if value not in choices:
            near = difflib.get_close_matches(str(value), choices, 1, 0.6)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise self.wrong(
                f"{self.name} is {self._shown()}{hint}", fix=f"It is one of: {', '.join(choices)}"
            )
        return str(value)

    def positive(self) -> float:
        """Return a number above 0."""
        value = self._scalar()
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.wrong(f"{self.name} is {self._shown()}; expected a number")
        if abs(value) > 1e300 or not math.isfinite(value) or not value > 0:
            raise self.wrong(f"{self.name} is {self._shown()}; expected a number above 0")
        return float(value)

    def count(self) -> int:
        """Return a whole number above 0."""
        value = self._scalar()
        if type(value) is not int or not 0 < value < 10**15:
            raise self.wrong(f"{self.name} is {self._shown()}; expected a whole number above 0")
        return value

    def _scalar(self) -> Any:
        if not isinstance(self._node, yaml.ScalarNode):
            return None
        try:
            return yaml.safe_load(yaml.serialize(self._node))
        except (yaml.YAMLError, ValueError) as error:
            raise self.wrong(f"{self.name} cannot be read: {str(error).splitlines()[0]}") from error

    def _shown(self) -> str:
        if isinstance(self._node, yaml.ScalarNode):
            text = str(self._node.value)
            return f"'{text if len(text) <= 60 else text[:57] + '...'}'" if text else "empty"
        return "a list" if isinstance(self._node, yaml.SequenceNode) else "a mapping"


def read_yaml(path: str | os.PathLike[str]) -> Entry:
    """Read a YAML file as its topmost value, with the safe loader."""
    path = Path(path)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(
                f"this is {path.stat().st_size:,} bytes; a file of figures has at most "
                f"{LARGEST_FILE:,}",
                where=path,
                fix="A trace is explained with `deltacell explain`.",
            )
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=path) from error
    except ValueError as error:
        raise InputError("this is not text in UTF-8", where=path) from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise InputError(
            f"this is not YAML: {problem}",
            where=path,
            line=None if mark is None else mark.line + 1,
        ) from error
    if node is None:
        raise InputError("this file is empty", where=path)
    return Entry(node, path, "")


def _or(words: Sequence[str]) -> str:
    return ", ".join(words)
