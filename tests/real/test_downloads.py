"""The checksums of downloads are those of the files."""

import gzip
import hashlib

import pytest

from deltacell.data.download import DOWNLOADS

pytestmark = [pytest.mark.real]
FILES = {
    "string-physical": "networks/4932.protein.physical.links.v12.0.txt.gz",
    "string-info": "genes/4932.protein.info.v12.0.txt.gz",
    "costanzo2010": "screens/sgadata_costanzo2009_intermediateCutoff_101120.txt.gz",
    "yeast-gem": "metabolism/yeast-GEM_9.0.2.xml.gz",  # at its source it is not compressed
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_has_the_checksum_of_its_download(name, shared_data):
    path = shared_data / FILES[name]
    download = DOWNLOADS[name]
    content = path.read_bytes()
    if not download.file.endswith(".gz"):
        content = gzip.decompress(content)
    assert hashlib.sha256(content).hexdigest() == download.sha256
