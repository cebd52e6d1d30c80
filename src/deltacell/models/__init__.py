"""DANGO, HeteroCell, the baselines, and their losses."""

from deltacell.models.prediction import Prediction

__all__ = ["Prediction"]
