"""Clauses about the settings of runs, made from values."""

from __future__ import annotations

from collections.abc import Sequence

from deltacell.base.text import count_text, listed, short_name
from deltacell.profile.explain.causes import OtherWork, RunWork
from deltacell.profile.explain.settings import SettingChange, SettingKind, Value
from deltacell.profile.record import Messages

LONGEST_VALUE = 32  # characters of a value in a sentence
MOST_CHANGES = 3  # settings in a clause


def changes_sentence(changes: Sequence[SettingChange]) -> str:
    """Return all settings that differ, with their values."""
    return f"They differ in {listed([change_clause(change) for change in changes])}."


def change_clause(change: SettingChange) -> str:
    """Return a setting with both values, such as ``batch (128 -> 32)``."""
    before, after = value_texts(change)
    return f"{brief(change.name)} ({before} -> {after})"


def value_texts(change: SettingChange) -> tuple[str, str]:
    """Return both values; of two lists of one length, what only one of them has."""
    match change.a, change.b:
        case tuple() as a, tuple() as b if len(a) == len(b):
            only_a = [name for name in a if name not in b]
            only_b = [name for name in b if name not in a]
            return brief(", ".join(only_a) or "other order"), brief(", ".join(only_b) or "order")
        case str() as a, str() as b if change.kind is SettingKind.cell:
            return a[:8], b[:8]
    return _value_text(change.a), _value_text(change.b)


def _value_text(value: Value) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case tuple():
            return f"{len(value):,}"
    return brief(value)


def brief(text: str) -> str:
    """Return an untrusted text in one line of at most `LONGEST_VALUE` characters."""
    line = short_name(text)
    if len(line) <= LONGEST_VALUE:
        return line
    half = LONGEST_VALUE // 2
    return f"{line[: half - 1]}…{line[-half:]}"


def work_clause(work: OtherWork) -> str:
    """Return what both models do for a mutant, the slower one first."""
    slow = work.slow
    fast = work.fast
    is_same_model = slow.model == fast.model
    if slow.messages == fast.messages or slow.messages is None or fast.messages is None:
        if is_same_model:
            return f"the propagation differs ({_propagation(slow)}; {_propagation(fast)})"
        return f"the models differ ({brief(slow.model)}; {brief(fast.model)})"
    subject = _propagation(fast) if is_same_model else brief(fast.model)
    return f"{_whole_clause(slow)}, and {subject} {_predicate(fast)}"


def _whole_clause(work: RunWork) -> str:
    """Return what a model does for a mutant, as a clause of its own."""
    match work.messages:
        case Messages.graph_per_mutant:
            return f"every mutant has a graph of its own ({_setting(work)})"
        case Messages.masked_edges:
            return f"all edges are masked anew for every mutant ({_setting(work)})"
        case Messages.whole_products:
            return f"messages are computed for all genes of every mutant ({_setting(work)})"
        case Messages.changes:
            return f"{brief(work.model)} computes what changes in every mutant ({_setting(work)})"
    return f"{brief(work.model)} {_predicate(work)}"


def _predicate(work: RunWork) -> str:
    """Return what a model or a propagation does for a mutant, without its subject."""
    match work.messages:
        case Messages.nothing:
            return "passes none in the cell"
        case Messages.wild_type:
            return "passes messages once per step"
        case Messages.graph_per_mutant:
            return "cuts out a graph of each"
        case Messages.masked_edges:
            return "masks all edges for each"
        case Messages.whole_products:
            return "computes messages for all genes of each"
        case Messages.changes:
            return "computes what changes"
        case None:
            return "differs"


def _setting(work: RunWork) -> str:
    chosen = "" if work.strategy == work.propagation else f", here {brief(work.strategy or '?')}"
    return f"propagation={brief(work.propagation or '?')}{chosen}"


def _propagation(work: RunWork) -> str:
    if work.propagation is None:
        return "none"
    chosen = "" if work.strategy == work.propagation else f" ({brief(work.strategy or '?')})"
    return f"{brief(work.propagation)}{chosen}"


def settings_clause(changes: Sequence[SettingChange]) -> str:
    """Return the settings that explain a gap, of which the subject is the second run."""
    if len(changes) > 1:
        text = listed(_named(changes))
        return f"{text} differ, and these runs do not tell which of them matters"
    change = changes[0]
    before, after = value_texts(change)
    match change.kind, change.a, change.b:
        case SettingKind.batch, int(), int():
            samples = "fewer" if change.b < change.a else "more"
            shared = "share what a step costs whatever its batch"
            return f"its batch is {after} instead of {before}, so {samples} samples {shared}"
        case SettingKind.relations, tuple(), tuple() if len(change.a) != len(change.b):
            return f"it passes messages along {after} relations instead of {before}"
        case SettingKind.accumulated, _, _:
            return f"a step accumulates {after} batches instead of {before}"
        case SettingKind.ranks, _, _:
            return f"it runs on {after} ranks instead of {before}"
        case SettingKind.loss, _, _:
            return f"its loss is {after} instead of {before}"
        case SettingKind.mode, _, _:
            return f"it was run in mode '{after}' instead of '{before}'"
        case SettingKind.genes, _, _:
            return f"its cell has {after} genes instead of {before}"
        case SettingKind.cell, _, _:
            return f"its cell is another one ({before} -> {after})"
        case SettingKind.compiled, _, bool():
            return "its row-wise parts are " + ("compiled" if change.b else "not compiled")
    return f"its {change_clause(change)} differs"


def _named(changes: Sequence[SettingChange]) -> list[str]:
    """Return the first changes with their values, and how many others there are."""
    texts = [change_clause(change) for change in changes[:MOST_CHANGES]]
    n_others = len(changes) - len(texts)
    return [*texts, count_text(n_others, "other setting")] if n_others else texts


def unexplained_clause(changes: Sequence[SettingChange] | None) -> str:
    """Return that settings are the same or do not explain a gap; empty if they are unknown."""
    if changes is None:
        return ""
    if not changes:
        return "; their settings are the same"
    names = [brief(change.name) for change in changes[:MOST_CHANGES]]
    if len(changes) > MOST_CHANGES:
        names.append("others")
    return f"; the settings that differ ({', '.join(names)}) do not explain it"


def differing_clause(changes: Sequence[SettingChange], *, is_recorded: bool) -> str:
    """Return what differs between two runs that take the same time."""
    if not changes:
        return "; their settings are the same" if is_recorded else ""
    names = [brief(change.name) for change in changes[:MOST_CHANGES]]
    if len(changes) > MOST_CHANGES:
        names.append("others")
    return f", although they differ in {listed(names)}"
