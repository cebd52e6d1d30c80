"""Source files as tables of text, in which each row has a line number that errors can name.

A file is text with any separator, in UTF-8, UTF-16 or Latin-1, plain, gzip or zip, with or without
title lines above its header; an xlsx workbook; or Parquet. A `File` is opened lazily and offers its
`sheets`: the ways to split it into rows, each known by its first rows. A reader looks at these to
recognise its format, and `Sheet.below` gives it the rows below a header as a `Table`.

- `unpack`: bytes of a file, decompressed, with its checksum
- `file`: `File`, the sheets of a file
- `sheet`: `Sheet`, the first rows of a table and its possible headers
- `table`: `Table`, columns of text with line numbers, and the rows that are bad
- `columns`: `ColumnNames`, what the columns mean, as given by the user
- `numbers`: text as numbers, and what counts as missing
"""

from deltacell.storage.tables.columns import ColumnNames, ColumnPlaces
from deltacell.storage.tables.file import File
from deltacell.storage.tables.numbers import (
    MISSING,
    Numbers,
    is_missing,
    is_number,
    numbers_of,
    present,
)
from deltacell.storage.tables.sheet import HEADER_WITHIN, Header, Sheet, fields_of, word
from deltacell.storage.tables.table import Table, frame_of
from deltacell.storage.tables.unpack import Content, open_text, reading

__all__ = ["HEADER_WITHIN", "MISSING", "ColumnNames", "ColumnPlaces", "Content", "File", "Header"]
__all__ += ["Numbers", "Sheet", "Table", "fields_of", "frame_of", "is_missing", "is_number"]
__all__ += ["numbers_of", "open_text", "present", "reading", "word"]
