"""The citation file and the page of dependencies are complete and of this version."""

import re
import tomllib
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = PYPROJECT["project"]
MYPY: dict[str, Any] = PYPROJECT["tool"]["mypy"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
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


def test_the_workflow_runs_every_python_that_the_package_claims() -> None:
    text = (ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["run"]
    claimed = [one.rpartition(" ")[2] for one in PROJECT["classifiers"] if "Python :: 3." in one]
    assert job["strategy"]["matrix"]["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"
    assert job["steps"][-1]["run"].endswith("bash .ci/run")


def test_hooks_run_programs_of_the_venv_on_the_files_that_ci_checks() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    [local] = yaml.safe_load(text)["repos"]
    assert local["repo"] == "local"
    hooks = {hook["id"]: hook for hook in local["hooks"]}
    assert set(hooks) == {"ruff", "ruff-format", "mypy"}
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks.values())
    checked = re.compile(hooks["mypy"]["files"])
    for folder in MYPY["files"]:
        assert checked.match(f"{folder}/package/module.py")


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_for_issues_asks_for_something_by_unique_names(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    names = [part["id"] for part in form["body"]]
    assert len(set(names)) == len(names)
    assert all(part["attributes"]["label"] for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])


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
