"""The page of dependencies names all that are installed, and the core has no GPL."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = [re.split("[<>=]", one)[0] for one in PROJECT["dependencies"]]


def test_the_page_lists_every_dependency() -> None:
    text = (ROOT / "docs" / "dependencies.md").read_text()
    core, _, extras = text.partition("## Extras")
    assert re.findall(r"^\| ([\w-]+) \|", core, re.MULTILINE)[2:] == sorted(CORE)
    listed = re.findall(r"^\| ([\w-]+) \|", extras, re.MULTILINE)[2:]
    assert listed == sorted(PROJECT["optional-dependencies"].keys() - {"dev"})


@pytest.mark.parametrize("package", CORE)
def test_no_package_of_the_core_is_under_the_gpl(package: str) -> None:
    found = metadata(package)
    licences = [found.get("License-Expression") or found.get("License") or ""]
    licences += [one for one in found.get_all("Classifier") or [] if one.startswith("License")]
    said = " ".join(licences)[:300]
    assert said
    assert not re.search(r"GPL|General Public", said), said
