"""The worked examples in the docstrings give what they say."""

import doctest
import importlib

import pytest

MODULES = ["", ".late.units", ".late.shared_rows", ".late.epistasis"]


@pytest.mark.parametrize("module", MODULES)
def test_worked_examples_give_what_they_say(module):
    result = doctest.testmod(importlib.import_module(f"deltacell.propagate{module}"))
    assert result.attempted > 2
    assert result.failed == 0
