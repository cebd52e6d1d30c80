"""Readers of screens: published formats, tables of one's own, and named splits."""

from deltacell.screen.readers import tables
from deltacell.screen.readers.published import PUBLISHED

SCREEN_READERS = (*PUBLISHED, tables.reader, tables.split_reader)
