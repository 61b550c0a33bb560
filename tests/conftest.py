"""The order of the suite: what takes longest comes first, so that no worker ends alone with it."""

import pytest

LONGEST = ("tests/processes/", "tests/simulation/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest directories first, everything else as it was collected."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
