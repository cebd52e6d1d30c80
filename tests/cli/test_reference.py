"""The page of the commands is what the commands say."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltacell.cli.reference import PAGE, commands, reference, write_reference

ROOT = Path(__file__).resolve().parents[2]
LEAVES = [(path, one) for path, one in commands() if not hasattr(one, "commands")]


def test_the_page_is_up_to_date(tmp_path: Path) -> None:
    write_reference(tmp_path / "commands.md")
    written = (tmp_path / "commands.md").read_text(encoding="utf-8")
    assert written == reference()
    assert (ROOT / PAGE).read_text(encoding="utf-8") == written, (
        "write it anew: python -c 'from deltacell.cli.reference import write_reference; "
        "write_reference()'"
    )


@pytest.mark.parametrize(("path", "command"), LEAVES, ids=[" ".join(path) for path, _ in LEAVES])
def test_a_command_is_there_with_all_its_options(path: tuple[str, ...], command: object) -> None:
    _, _, rest = reference().partition(f"\n## deltacell {' '.join(path)}\n")
    section = rest.partition("\n## ")[0]
    assert f"Example: `deltacell {' '.join(path)}" in section
    for given in command.params:  # type: ignore[attr-defined]
        if given.param_type_name == "option" and given.name != "help":
            assert f"`{given.opts[0]}`" in section
