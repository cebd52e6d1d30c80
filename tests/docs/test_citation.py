"""The citation file is what the Citation File Format 1.2.0 asks for, and of this version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
REFERENCE_KEYS = {
    "type", "notes", "title", "authors", "journal", "volume", "year", "doi", "start", "end",
}  # fmt: skip
"""Those of the format that are used here."""


@pytest.fixture(scope="module")
def cited() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def test_it_has_what_the_format_asks_for(cited: dict[str, Any]) -> None:
    assert cited["cff-version"] == "1.2.0"
    assert {"authors", "message", "title"} <= set(cited)
    assert cited["type"] == "software"
    for author in cited["authors"]:
        assert set(author) == {"name"} or {"family-names", "given-names"} == set(author)


def test_it_is_of_this_version_and_licence(cited: dict[str, Any], project: dict[str, Any]) -> None:
    assert cited["version"] == project["version"]
    assert cited["license"] == project["license"]
    assert cited["keywords"] == project["keywords"]


def test_references_are_whole(cited: dict[str, Any]) -> None:
    for reference in cited["references"]:
        assert set(reference) <= REFERENCE_KEYS
        assert {"type", "title", "authors"} <= set(reference)
        assert reference["type"] == "article"
        assert isinstance(reference["year"], int)
        if "doi" in reference:
            assert re.fullmatch(
                r"10\.\d{4,9}(\.\d+)?/[A-Za-z0-9:/_;\-.()\[\]\\]+", reference["doi"]
            )
