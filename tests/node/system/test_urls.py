"""Addresses of files elsewhere."""

import pytest

from node.system.urls import file_system
from protocol.errors import SettingsError


@pytest.mark.parametrize("url", ["s3://me:secret@bucket/text", "https://me:secret@host/text"])
def test_a_password_in_an_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="here, without a name and password") as refused:
        file_system(url, "expected a URL that fsspec can read here")
    assert "secret" not in str(refused.value)


def test_other_signs_of_an_address_are_its_own() -> None:
    _, path = file_system("memory://bucket/model@main", "expected a URL")
    assert path == "/bucket/model@main"
