"""Which name was meant."""

from __future__ import annotations

import pytest

from deltacell.errors import did_you_mean

KNOWN = ["YAL001C", "TFC3", "HIS3", "string_coexpression"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [("YAL01C", "YAL001C"), (" tfc3 ", "TFC3"), ("coexpression", "string_coexpression")],
)
def test_a_near_name_is_offered(given: str, meant: str) -> None:
    assert did_you_mean(given, KNOWN) == f" (did you mean '{meant}'?)"


@pytest.mark.parametrize("given", ["", "ZWF1", "nothing like it"])
def test_what_is_near_to_none_gets_no_guess(given: str) -> None:
    assert did_you_mean(given, KNOWN) == ""
    assert did_you_mean(given, []) == ""
