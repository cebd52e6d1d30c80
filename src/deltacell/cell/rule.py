"""Boolean gene rules: which genes a reaction needs."""

from __future__ import annotations

import re
from itertools import product

from deltacell.errors import InputError

Clause = tuple[str, ...]

MOST_CLAUSES = 4096

_TOKEN = re.compile(r"[()]|&+|\|+|[^\s()&|]+")
_AND, _OR = {"and", "&", "&&"}, {"or", "|", "||"}


def clauses_of(rule: str) -> tuple[Clause, ...]:
    """Return a rule as alternatives, each a set of genes that together suffice.

    ``(A and B) or C`` gives ``(("A", "B"), ("C",))``. Alternatives stay as they are written, also
    where one contains another; equal ones are kept once. An empty rule has no alternatives.

    Parameters
    ----------
    rule
        Gene names joined by ``and``, ``or`` and brackets, in any case.
    """
    tokens = _TOKEN.findall(rule)
    if not tokens:
        return ()
    try:
        clauses, rest = _either(tokens, rule)
    except RecursionError:
        raise _malformed(f"{rule[:80]}…", "its brackets are nested too deep") from None
    if rest:
        raise _malformed(rule, f"'{rest[0]}' was not expected")
    return tuple(tuple(sorted(clause)) for clause in clauses)


def _either(tokens: list[str], rule: str) -> tuple[list[frozenset[str]], list[str]]:
    found, tokens = _together(tokens, rule)
    while tokens and tokens[0].lower() in _OR:
        more, tokens = _together(tokens[1:], rule)
        found = list(dict.fromkeys([*found, *more]))
    return found, tokens


def _together(tokens: list[str], rule: str) -> tuple[list[frozenset[str]], list[str]]:
    found, tokens = _one(tokens, rule)
    while tokens and tokens[0].lower() in _AND:
        more, tokens = _one(tokens[1:], rule)
        if len(found) * len(more) > MOST_CLAUSES:
            raise InputError(
                f"a gene rule has more than {MOST_CLAUSES} alternatives: {rule[:80]}…",
                fix="Write it with fewer nested choices.",
            )
        found = list(dict.fromkeys(a | b for a, b in product(found, more)))
    return found, tokens


def _one(tokens: list[str], rule: str) -> tuple[list[frozenset[str]], list[str]]:
    if not tokens:
        raise _malformed(rule, "it ends where a gene was expected")
    token, rest = tokens[0], tokens[1:]
    if token == "(":
        found, rest = _either(rest, rule)
        if not rest or rest[0] != ")":
            raise _malformed(rule, "a bracket is not closed")
        return found, rest[1:]
    if token == ")" or token.lower() in _AND | _OR:
        raise _malformed(rule, f"'{token}' stands where a gene was expected")
    if token.lower() == "not":
        raise _malformed(rule, "'not' has no meaning for a deletion")
    return [frozenset([token])], rest


def _malformed(rule: str, why: str) -> InputError:
    return InputError(f"the gene rule '{rule}' cannot be read: {why}")
