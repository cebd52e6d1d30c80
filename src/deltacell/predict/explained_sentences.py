"""What carries the prediction of a gene set, in words."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

_MOSTLY = 2 / 3
_NAMED = 3


def sentences_of(
    result: Mapping[str, Any], untrained: Sequence[str], sizes: Collection[int]
) -> list[str]:
    """Return what an explanation says.

    Parameters
    ----------
    result
        What `explain_set` found, without its sentences.
    untrained
        Names of the deleted genes that some run never had in training.
    sizes
        How many genes the sets have that all runs were trained on.
    """
    said = [
        _predicted(result),
        _two_parts(result),
        _measured(result),
        *([_relations(result), _genes(result)] if result["explained"] is not None else []),
        _votes(result),
        _evidence(result["evidence"]),
        _nearest(result),
        _beware(result, untrained, sizes),
        _residuals(result) if result["explained"] is not None else "",
    ]
    return [sentence for sentence in said if sentence]


def listed(words: Sequence[str]) -> str:
    """Return words as a person lists them."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _predicted(result: Mapping[str, Any]) -> str:
    runs, names = result["runs"], listed(result["names"])
    who = f"{runs[0]['name']} predicts" if len(runs) == 1 else f"{len(runs)} runs predict"
    spread = "" if result["spread"] is None else f", with a spread of {result['spread']:.2g}"
    return f"{who} a score of {_signed(result['score'])} for the deletion of {names}{spread}."


def _two_parts(result: Mapping[str, Any]) -> str:
    said = [
        f"{run['name']} takes it for a hit with a probability of {run['hit']:.2g}, and expects "
        f"{_signed(run['given_hit'])} of it then."
        for run in result["runs"]
        if run["hit"] is not None and run["given_hit"] is not None
    ]
    return " ".join(said)


def _votes(result: Mapping[str, Any]) -> str:
    votes = result["votes"]
    if not votes:
        return ""
    first = votes[0]
    return (
        f"It rests on {len(votes)} measured {'set' if len(votes) == 1 else 'sets'} next to it, "
        f"most of all on {' '.join(first['names'])} ({_signed(first['score'])}), with "
        f"{first['by']} in place of {first['replaced']} by {first['relation']}."
    )


def _measured(result: Mapping[str, Any]) -> str:
    if result["measured"] is None:
        return "This set is not among the measured ones that the run was made with."
    part = result["part"]
    where = "in none of the parts" if part is None else f"in the {part} part"
    return f"It was measured: {_signed(result['measured'])}, {where}."


def _relations(result: Mapping[str, Any]) -> str:
    rows = [row for row in result["relations"] if row["contribution"] != 0]
    baseline = result["relations_baseline"]
    if not rows:
        return (
            f"No relation has a part in it: the score is {_signed(baseline)} without any message."
        )
    size = sum(abs(row["contribution"]) for row in rows)
    named, covered = [], 0.0
    for row in rows[:_NAMED]:
        named.append(f"{row['relation']} ({_signed(row['contribution'])})")
        covered += abs(row["contribution"])
        if covered >= _MOSTLY * size:
            break
    change = result["explained"] - baseline
    carry = "carries" if len(named) == 1 else "carry"
    return (
        f"Without any message over the relations the score would be {_signed(baseline)}; they "
        f"change it by {_signed(change)}. {listed(named)} {carry} {100 * covered / size:.0f} % of "
        "what they contribute."
    )


def _genes(result: Mapping[str, Any]) -> str:
    rows = result["gene_contributions"]
    deleted = [row for row in rows if row["deleted"]]
    others = [row for row in rows if not row["deleted"]]
    of_deleted = sum(row["contribution"] for row in deleted)
    of_others = sum(row["contribution"] for row in others) + result["other_genes"]["contribution"]
    first = f"{deleted[0]['name']} ({_signed(deleted[0]['contribution'])})"
    who = "" if len(deleted) == 1 else f", most by {first}"
    if not others:
        return f"The deleted genes' own vectors contribute {_signed(of_deleted)}{who}."
    near = f"{others[0]['name']} ({_signed(others[0]['contribution'])})"
    return (
        f"The deleted genes' own vectors contribute {_signed(of_deleted)}{who}; all other genes "
        f"together {_signed(of_others)}, most by {near}."
    )


def _evidence(evidence: Mapping[str, Any]) -> str:
    pathways, complexes = evidence["pathways"], evidence["complexes"]
    parts = []
    if evidence["relations"]:
        parts.append(f"are joined by {listed(evidence['relations'])}")
    if pathways:
        parts.append(f"share the pathway{'s'[: len(pathways) > 1]} {listed(_first(pathways))}")
    if complexes:
        parts.append(f"are in a complex together (by {listed(_first(complexes))})")
    if not parts:
        return (
            "No relation of the cell joins two of the genes, and they share no pathway and no "
            "complex."
        )
    return f"Some of the genes {listed(parts)}."


def _first(names: Sequence[str]) -> list[str]:
    more = len(names) - _NAMED
    return [*names[:_NAMED], *([f"{more} more"] if more > 0 else [])]


def _nearest(result: Mapping[str, Any]) -> str:
    others = [near for near in result["nearest"] if near["genes"] != result["genes"]]
    if not others:
        return "No other set of this size was measured."
    first = others[0]
    part = "" if first["part"] is None else f" ({first['part']})"
    said = (
        f"The measured set most like it is {listed(first['names'])}{part}, at a distance of "
        f"{first['distance']:.2g}: measured {_signed(first['measured'])}, predicted "
        f"{_signed(first['predicted'])}."
    )
    if len(others) == 1:
        return said
    mean = sum(near["measured"] for near in others) / len(others)
    return f"{said} The {len(others)} nearest measured sets have a mean of {_signed(mean)}."


def _beware(result: Mapping[str, Any], untrained: Sequence[str], sizes: Collection[int]) -> str:
    said = []
    alone = len(result["runs"]) == 1
    size = len(result["genes"])
    if size not in sizes:
        which = "The run was not" if alone else "Not every run was"
        said.append(f"{which} trained on sets of {size} {'gene' if size == 1 else 'genes'}.")
    if untrained:
        is_are = "is" if len(untrained) == 1 else "are"
        said.append(
            f"{listed(untrained)} {is_are} in no set that "
            f"{'the run' if alone else 'one of the runs'} was trained on: what it knows "
            f"of {'it' if len(untrained) == 1 else 'them'} comes from networks and features alone."
        )
    return " ".join(said)


def _residuals(result: Mapping[str, Any]) -> str:
    worst = max(abs(result["relations_residual"]), abs(result["genes_residual"]))
    if result["complete"]:
        return (
            "Contributions tell what moves the model, which need not be what moves the cell. They "
            f"add up to the score within {worst:.1g}."
        )
    return (
        f"The contributions miss the score by {worst:.2g}, more than they should: the model turns "
        "too sharply on the way to be followed. Take them as a hint."
    )


def _signed(value: float) -> str:
    return f"{value:+.3g}"
