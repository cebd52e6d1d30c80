"""A wheel has all files of src and nothing else; an editable install finds what developers use."""

import inspect
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltacell.base.errors import InputError
from deltacell.cli import bench
from deltacell.cli.app import app
from deltacell_dev import wheel_contents

ROOT = Path(__file__).resolve().parents[2]
DEVELOPMENT = {name for name, table in bench.BENCHES.items() if table.get("development", False)}


def built(folder: Path, version: str) -> Path:
    """Build a wheel, ``standard`` or ``editable``, and return its file."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    builder = wheel.WheelBuilder(str(ROOT))
    return Path(next(builder.build(directory=str(folder), versions=[version])))


def changed(wheel: Path, *, without: str = "", added: str = "", content: bytes = b"") -> Path:
    """Return a copy of a wheel without one file, or with another one or another content."""
    copy = wheel.with_name("changed.whl")
    with zipfile.ZipFile(wheel) as archive, zipfile.ZipFile(copy, "w") as new:
        for name in archive.namelist():
            if name not in (without, added):
                new.writestr(name, archive.read(name))
        if added:
            new.writestr(added, content)
    return copy


def test_a_wheel_has_the_files_of_src_and_no_others(tmp_path: Path) -> None:
    wheel = built(tmp_path, "standard")
    assert wheel_contents.problems(wheel, ROOT / "src") == []
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "deltacell/bench/propagation.py" in names
    assert not [name for name in names if "faults" in name or "samples" in name]
    lacking = changed(wheel, without="deltacell/cli/bench.toml")
    assert wheel_contents.problems(lacking, ROOT / "src") == [
        "the wheel lacks deltacell/cli/bench.toml"
    ]
    larger = changed(wheel, added="deltacell_dev/bench/faults.py")
    assert wheel_contents.problems(larger, ROOT / "src") == [
        "the wheel contains deltacell_dev/bench/faults.py"
    ]
    with_data = changed(wheel, added="deltacell/conf/config.yaml", content=bytes(100_001))
    assert wheel_contents.problems(with_data, ROOT / "src") == [
        "deltacell/conf/config.yaml has 100,001 bytes, more than 100,000"
    ]


def test_an_editable_install_finds_both_packages(tmp_path: Path) -> None:
    with zipfile.ZipFile(built(tmp_path, "editable")) as archive:
        [paths] = [archive.read(name).decode() for name in archive.namelist() if ".pth" in name]
    assert set(paths.split()) == {str(ROOT / "src"), str(ROOT / "devtools")}


def test_every_benchmark_runs_a_function_of_its_package() -> None:
    assert {"data", "explain", "faults", "mutants", "start"} <= DEVELOPMENT
    for name, table in bench.BENCHES.items():
        run = bench.function_of(name, table)
        package = "deltacell_dev" if name in DEVELOPMENT else "deltacell"
        assert run.__module__.startswith(f"{package}.bench."), name


def test_an_option_of_a_benchmark_has_no_default_of_a_shared_one_with_its_name() -> None:
    batch = inspect.signature(bench.COMMANDS["train"]).parameters["batch"]
    shared = inspect.signature(bench.COMMANDS["dango"]).parameters["batch"]
    assert (batch.default, shared.default) == (None, 64)


@pytest.mark.parametrize("name", sorted(DEVELOPMENT))
def test_a_benchmark_of_developers_says_that_it_needs_the_sources(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "DEVELOPMENT", "a_package_that_is_not_installed")
    with pytest.raises(InputError) as caught:
        bench.function_of(name, bench.BENCHES[name])
    assert caught.value.code == "no-development-package"
    ended = CliRunner().invoke(app, ["bench", name])
    assert isinstance(ended.exception, InputError)
    assert bench.function_of("propagation", bench.BENCHES["propagation"])
