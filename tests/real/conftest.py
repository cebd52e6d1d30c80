"""Real files, read once for all tests."""

import pytest

from deltacell.data.import_folder import READERS
from deltacell.storage.tables import File


@pytest.fixture(scope="session")
def read(shared_data):
    """Return a function that reads a file of the folder by the first reader that knows it."""

    def by_reader(name, **options):
        file = File(shared_data / name)
        reader = next(reader for reader in READERS if reader.find(file))
        return reader.read(shared_data / name, **options)

    return by_reader


@pytest.fixture(scope="session")
def sgd(read):
    return read("genes/SGD_features.tab.gz")


@pytest.fixture(scope="session")
def genes(sgd):
    return sgd[0]


@pytest.fixture(scope="session")
def costanzo2010(read):
    [written] = read("screens/sgadata_costanzo2009_intermediateCutoff_101120.txt.gz")
    return written
