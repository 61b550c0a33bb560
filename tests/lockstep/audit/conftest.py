"""One finished run for all tests of this folder."""

from pathlib import Path

import pytest

from tests.lockstep.audit.runs import trained


@pytest.fixture(scope="package")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; it is only read."""
    return trained(tmp_path_factory.mktemp("finished"))
