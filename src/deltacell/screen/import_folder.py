"""The former place of `deltacell.data.import_folder`, kept for one release."""

from deltacell.base.moved import moved

__getattr__ = moved("deltacell.screen.import_folder", "deltacell.data.import_folder")
