"""The execution modes of a training: what each executes of a whole one, and what it leaves out.

Every other module asks the `Mode` and never compares its name. `deltacell.train.compare_modes`
runs all of them side by side.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mode:
    """What a training in a mode executes; batches are always loaded."""

    name: str
    computes_loss: bool = True  # the forward pass and the loss
    computes_gradients: bool = True  # of an empty graph if there is no loss
    updates_weights: bool = True  # otherwise the gradients are forgotten
    repeats_first_batch: bool = False  # whether it is computed again and again
    is_whole: bool = False  # whether the result is a trained network; in ``train`` alone

    @property
    def is_limited(self) -> bool:
        """Whether it ends after some batches, also if the config does not say after how many."""
        return not self.is_whole

    @property
    def validates(self) -> bool:
        """Whether the validation part is predicted after epochs."""
        return self.is_whole

    @property
    def writes_checkpoints(self) -> bool:
        """Whether checkpoints are written, and ``metrics.csv`` after every epoch."""
        return self.is_whole

    @property
    def draws_figures(self) -> bool:
        """Whether figures of the validation are drawn."""
        return self.is_whole

    @property
    def fits_in_one_call(self) -> bool:
        """Whether a predictor that the loop does not train can be fitted in this mode."""
        return self.is_whole


_ALL = (
    Mode("train", is_whole=True),
    Mode("step", updates_weights=False),
    Mode("forward", computes_gradients=False, updates_weights=False),
    Mode("data", computes_loss=False, computes_gradients=False, updates_weights=False),
    Mode("empty", computes_loss=False),
    Mode("fixed", repeats_first_batch=True),
)

MODES = {mode.name: mode for mode in _ALL}
"""The modes by the names that the config key ``mode`` allows."""
