"""Errors as data and as sentences, and which name was meant."""

import pytest

from deltacell.base.errors import InputError, did_you_mean

KNOWN = ["YAL001C", "TFC3", "HIS3", "string_coexpression"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *(("YAL01C", "YAL001C"), (" tfc3 ", "TFC3"), ("coexpression", "string_coexpression")),
        *(("", None), ("ZWF1", None), ("nothing like it", None)),
    ],
)
def test_a_near_name_is_offered(given: str, meant: str | None) -> None:
    assert did_you_mean(given, KNOWN) == (f" (did you mean '{meant}'?)" if meant else "")
    assert did_you_mean(given, []) == ""


def test_an_error_has_a_place_a_fix_and_fields() -> None:
    error = InputError("x is wrong", code="wrong", where="a.txt", line=3, fix="Change x.", key="x")
    assert str(error) == "a.txt, line 3: x is wrong\n  Change x."
    assert (error.code, error.line, error.fields) == ("wrong", 3, {"key": "x"})
