"""Keys on disk."""

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from lockstep.service.keys import KEY_NAME, load_or_create_key
from protocol.errors import StorageError
from protocol.handshake import public_bytes


def test_a_process_keeps_its_key(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "place"
    first = load_or_create_key(directory)
    assert public_bytes(load_or_create_key(directory)) == public_bytes(first)
    assert public_bytes(load_or_create_key(tmp_path / "other")) != public_bytes(first)


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    load_or_create_key(tmp_path)
    assert stat.S_IMODE((tmp_path / KEY_NAME).stat().st_mode) == 0o600


def test_a_key_that_others_could_read_is_closed_to_them_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = load_or_create_key(tmp_path)
    assert not caplog.records
    (tmp_path / KEY_NAME).chmod(0o644)
    assert public_bytes(load_or_create_key(tmp_path)) == public_bytes(key)
    assert stat.S_IMODE((tmp_path / KEY_NAME).stat().st_mode) == 0o600
    assert "readable by other accounts" in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"]
)
def test_a_damaged_key_is_never_replaced_in_silence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / KEY_NAME).write_bytes(content)
    with pytest.raises(StorageError, match=KEY_NAME):
        load_or_create_key(tmp_path)
    assert (tmp_path / KEY_NAME).read_bytes() == content


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    pem = X25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    (tmp_path / KEY_NAME).write_bytes(pem)
    with pytest.raises(StorageError, match="X25519"):
        load_or_create_key(tmp_path)
