"""What the record of a run says if its predictor was fitted again, on all measurements."""

from __future__ import annotations

from dataclasses import dataclass

from deltacell.profile.accuracy import Accuracy


@dataclass(frozen=True, kw_only=True)
class ChosenByValidation:
    """What a fit chose by its validation part, and a fit on all measurements keeps.

    A predictor leaves out what it does not choose.
    """

    rounds: tuple[int, ...] = ()  # trees for scores, of each fit
    rounds_of_hits: int | None = None  # trees for hits
    shift: float | None = None  # of the calibrated log odds of a hit
    slope: float | None = None
    weight: float | None = None  # of what pairs add to additive effects


@dataclass(frozen=True, kw_only=True)
class Refitted:
    """The run whose predictor was fitted again, on all measurements of its screen."""

    run: str  # its directory, relative to that of the new run
    started: str  # when it began, by which it is known if it was moved
    measurements: int
    validation_pearson: float | None  # of that run on its validation part
    chosen: ChosenByValidation
    accuracy: Accuracy | None = None  # of that run, if it was tested before

    @property
    def sentence(self) -> str:
        """What was done, in words."""
        rounds = [str(count) for count in self.chosen.rounds]
        if self.chosen.rounds_of_hits is not None:
            rounds.append(f"{self.chosen.rounds_of_hits} for hits")
        trees = f", with as many trees as there ({' and '.join(rounds)})" if rounds else ""
        return (
            f"The predictor was tested on a split, and then fitted on all {self.measurements:,} "
            f"measurements{trees}."
        )
