from __future__ import annotations

import platform
import subprocess

import pytest
import torch

import deltacell
from deltacell.train import provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    done = subprocess.run(
        ["git", "-C", folder, *identity, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path):
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return package


def test_versions():
    versions = provenance.versions()
    assert versions["python"] == platform.python_version()
    assert versions["torch"] == torch.__version__
    assert {"deltacell", "lightning"} < set(versions)


def test_the_commit_of_a_checkout(package):
    head = git(package, "rev-parse", "HEAD")
    assert len(head) == 40
    assert provenance.commit(package) == head
    git(package, "tag", "v1")
    assert provenance.commit(package) == head


def test_files_that_were_changed_since_are_said(package):
    (package / "__init__.py").write_text("x = 1")
    assert provenance.commit(package) == f"{git(package, 'rev-parse', 'HEAD')}-dirty"


def test_a_package_that_is_installed_below_another_checkout_is_not_of_its_commit(package):
    installed = package.parent / "venv" / "deltacell"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert provenance.commit(installed) is None


def test_no_checkout_and_no_git_are_no_error(tmp_path, package, monkeypatch):
    assert provenance.commit(tmp_path / "nowhere") is None
    monkeypatch.setenv("PATH", "")
    assert provenance.commit(package) is None


def test_ours_is_that_of_the_package(monkeypatch):
    asked = []
    monkeypatch.setattr(provenance, "_git", lambda folder, *_: asked.append(folder))
    provenance.commit()
    assert str(asked[0]) == deltacell.__path__[0]
