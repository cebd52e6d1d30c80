"""PairCell, DANGO, HeteroCell, the baselines, and their losses."""

from deltacell.models.base import Prediction
from deltacell.models.dango import STRING_LAMBDAS, STRING_RELATIONS, Dango
from deltacell.models.hetero_cell import HeteroCell
from deltacell.models.hyper_sagnn import HyperSAGNN
from deltacell.models.losses import DangoLoss, LogCosh, Loss, LossValue, PointDistributionContrast

__all__ = ["STRING_LAMBDAS", "STRING_RELATIONS", "Dango", "DangoLoss", "HeteroCell", "HyperSAGNN"]
__all__ += ["LogCosh", "Loss", "LossValue", "PointDistributionContrast", "Prediction"]
