"""Readings from the logs of a training: progress bars, tables of profilers, and CSV files."""

from deltacell.profile.logs.read import read_log
from deltacell.profile.logs.readings import Log, LogReading, Quantity

__all__ = ["Log", "LogReading", "Quantity", "read_log"]
