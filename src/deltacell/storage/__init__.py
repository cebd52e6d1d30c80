"""The on-disk form of cells and screens, tables in any format, and where data come from."""

from deltacell.storage.directory import (
    MANIFEST,
    SCHEMA_VERSION,
    Storable,
    Stored,
    checksum,
    new_directory,
    read,
    read_manifest,
    remove,
    sha256_of_file,
    write,
    write_manifest,
)

__all__ = ["MANIFEST", "SCHEMA_VERSION", "Storable", "Stored", "checksum", "new_directory"]
__all__ += ["read", "read_manifest", "remove", "sha256_of_file", "write", "write_manifest"]
