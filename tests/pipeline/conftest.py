import pytest

from tests.support.webhdfs import served


@pytest.fixture
def store(tmp_path):
    """A store's address, and the folder that it keeps."""
    folder = tmp_path / "kept"
    folder.mkdir()
    with served(folder) as address:
        yield address, folder
