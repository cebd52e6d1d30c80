"""Readers of screens: published formats, tables of one's own, and named splits."""

from deltacell.screen.readers.tables import SCREEN_READERS as SCREEN_READERS
