import pytest
from report_files import write_everything


@pytest.fixture
def everything(tmp_path):
    """Return a folder with results of every kind."""
    write_everything(tmp_path / "runs")
    return tmp_path / "runs"
