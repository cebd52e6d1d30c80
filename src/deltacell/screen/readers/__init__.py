"""Readers of screens: published formats, other tables, and named splits."""

from deltacell.screen.readers.tables import SCREEN_READERS as SCREEN_READERS
