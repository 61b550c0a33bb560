"""Certificates for which an ed25519 key vouches."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from protocol.border.certificates import BYTES_MAX, OID, certificate, vouching_key
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
CHANNEL_KEY = ec.derive_private_key(12345, ec.SECP256R1())
START = datetime(2026, 1, 1, tzinfo=UTC)


def der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def made() -> bytes:
    return der(certificate(KEY, CHANNEL_KEY, START, START + timedelta(days=1)))


def test_a_certificate_names_the_key_that_vouches_for_it() -> None:
    assert vouching_key(made()) == public_bytes(KEY)


def test_a_voucher_does_not_fit_another_channel_key() -> None:
    ours = x509.load_der_x509_certificate(made())
    thief = ec.derive_private_key(999, ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    stolen = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(thief.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + timedelta(days=1))
        .add_extension(ours.extensions.get_extension_for_oid(OID).value, critical=False)
        .sign(thief, hashes.SHA256())
    )
    with pytest.raises(RemoteProtocolError, match="signed by the key that it names"):
        vouching_key(stolen.public_bytes(Encoding.DER))


def test_a_certificate_of_another_server_is_told_apart() -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example.org")])
    other = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(CHANNEL_KEY.public_key())
        .serial_number(1)
        .not_valid_before(START)
        .not_valid_after(START + timedelta(days=1))
        .sign(CHANNEL_KEY, hashes.SHA256())
    )
    with pytest.raises(RemoteProtocolError, match="another server"):
        vouching_key(other.public_bytes(Encoding.DER))


@given(st.binary(max_size=600))
def test_no_bytes_raise_anything_else(noise: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        vouching_key(noise)


@given(st.integers(0, 10_000), st.integers(0, 7))
def test_no_flipped_bit_names_another_key(place: int, bit: int) -> None:
    body = bytearray(made())
    body[place % len(body)] ^= 1 << bit
    try:
        found = vouching_key(bytes(body))
    except RemoteProtocolError:
        return
    assert found == public_bytes(KEY)


def test_a_long_one_is_refused_before_it_is_read() -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        vouching_key(bytes(BYTES_MAX + 1))
