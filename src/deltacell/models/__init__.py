"""PairCell, DANGO, HeteroCell, the baselines, and their losses; imported when they are used."""

from typing import TYPE_CHECKING

from deltacell.models.lazy import exports

if TYPE_CHECKING:
    from deltacell.models.dango.config import STRING_LAMBDAS, STRING_RELATIONS
    from deltacell.models.dango.model import Dango
    from deltacell.models.hetero_cell.model import HeteroCell
    from deltacell.models.hyper_sagnn import HyperSAGNN
    from deltacell.models.interface import Prediction
    from deltacell.models.losses import (
        DangoLoss,
        LogCosh,
        Loss,
        LossValue,
        PointDistributionContrast,
    )

__all__ = ["STRING_LAMBDAS", "STRING_RELATIONS", "Dango", "DangoLoss", "HeteroCell", "HyperSAGNN"]
__all__ += ["LogCosh", "Loss", "LossValue", "PointDistributionContrast", "Prediction"]

_LOSSES = ("DangoLoss", "LogCosh", "Loss", "LossValue", "PointDistributionContrast")
__getattr__ = exports(
    __name__,
    {
        **dict.fromkeys(_LOSSES, "losses"),
        **dict.fromkeys(("STRING_LAMBDAS", "STRING_RELATIONS"), "dango.config"),
        "Dango": "dango.model",
        "HeteroCell": "hetero_cell.model",
        "HyperSAGNN": "hyper_sagnn",
        "Prediction": "interface",
    },
)
