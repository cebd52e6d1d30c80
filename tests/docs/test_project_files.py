"""The citation file and the page of dependencies are complete and of this version."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = [re.split("[<>=]", one)[0] for one in PROJECT["dependencies"]]


def test_the_citation_is_of_this_version() -> None:
    cited: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"authors", "message", "title"} <= set(cited)
    assert (cited["cff-version"], cited["type"]) == ("1.2.0", "software")
    for key in ("version", "license", "keywords"):
        assert cited[key] == PROJECT[key]
    for reference in cited["references"]:
        assert {"type", "title", "authors", "year"} <= set(reference)
        assert re.fullmatch(r"10\.\d{4,9}/\S+", reference.get("doi", "10.1000/1"))


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
