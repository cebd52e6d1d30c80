"""The former place of `deltacell.api.figures`, kept for one release."""

from deltacell.base.moved import moved

__getattr__ = moved("deltacell.evaluate.figures", "deltacell.api.figures")
