"""The former place of `deltacell.evaluation.figures`, kept for one release."""

from deltacell.base.moved import moved

__getattr__ = moved("deltacell.evaluate.figures", "deltacell.evaluation.figures")
