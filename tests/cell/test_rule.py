from __future__ import annotations

import pytest

from deltacell.cell.metabolism import MOST_CLAUSES, clauses_of
from deltacell.errors import InputError


@pytest.mark.parametrize(
    ("rule", "clauses"),
    [
        ("", ()),
        ("  \n ", ()),
        ("A", (("A",),)),
        ("(A and B) or C", (("A", "B"), ("C",))),
        ("A and B or C", (("A", "B"), ("C",))),
        ("A or B and C", (("A",), ("B", "C"))),
        ("A AND (B Or C)", (("A", "B"), ("A", "C"))),
        ("A&B|C", (("A", "B"), ("C",))),
        ("A & B || C", (("A", "B"), ("C",))),
        ("((A))", (("A",),)),
        ("A or A", (("A",),)),
        ("A and A", (("A",),)),
        ("B and A or A and B", (("A", "B"),)),
        ("A or (A and B)", (("A",), ("A", "B"))),
        ("(A or B) and (C or D)", (("A", "C"), ("A", "D"), ("B", "C"), ("B", "D"))),
        ("YAL001C-A and Q0045", (("Q0045", "YAL001C-A"),)),
    ],
)
def test_a_rule_is_its_alternatives(rule, clauses):
    assert clauses_of(rule) == clauses


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("A and", "it ends where a gene was expected"),
        ("and A", "'and' stands where a gene was expected"),
        ("A or or B", "'or' stands where a gene was expected"),
        ("(A", "a bracket is not closed"),
        ("A)", r"'\)' was not expected"),
        ("()", r"'\)' stands where a gene was expected"),
        ("A B", "'B' was not expected"),
        ("not A", "'not' has no meaning"),
        ("A and not B", "'not' has no meaning"),
        ("(" * 20_000 + "A" + ")" * 20_000, "nested too deep"),
    ],
)
def test_a_rule_that_cannot_be_read_says_why(rule, why):
    with pytest.raises(InputError, match=why) as error:
        clauses_of(rule)
    assert len(str(error.value)) < 300


def test_a_rule_with_too_many_alternatives_is_refused_before_it_fills_the_memory():
    choices = " and ".join(f"(A{i} or B{i})" for i in range(40))
    with pytest.raises(InputError, match=f"more than {MOST_CLAUSES} alternatives"):
        clauses_of(choices)
    assert len(clauses_of(" and ".join(f"(A{i} or B{i})" for i in range(12)))) == 4096
