"""Losses: log cosh, DANGO's, and point + distribution + contrast."""

from deltacell.models.losses.dango import DangoLoss
from deltacell.models.losses.log_cosh import LogCosh, log_cosh
from deltacell.models.losses.point_distribution_contrast import PointDistributionContrast
from deltacell.models.losses.supcr import supcr
from deltacell.models.losses.value import Loss, LossValue
from deltacell.models.losses.wasserstein import wasserstein

__all__ = [
    "DangoLoss",
    "LogCosh",
    "Loss",
    "LossValue",
    "PointDistributionContrast",
    "log_cosh",
    "supcr",
    "wasserstein",
]
