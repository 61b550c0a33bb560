"""Certificates of TLS that an ed25519 key vouches for, in place of an authority.

A coordinator or node makes a P-256 key and a certificate at its start. The certificate carries the
ed25519 key that names its owner, and that key's signature over the P-256 public key:

    X.509, self-signed, name NAME
      extension OID    ed25519 public key (32 bytes) || signature (64 bytes) over
                       ("lockstep.tls.v1", SubjectPublicKeyInfo in DER)

A client takes the certificate that a server shows, reads which key vouches for it, compares that
key with the one that it expects, and then trusts this one certificate for the connection. A machine
on the way can show the certificate to others, but lacks its P-256 key. Pure: keys and times are
arguments.
"""

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from protocol.errors import RemoteProtocolError
from protocol.handshake import KEY_BYTES, SIGNATURE_BYTES, public_bytes

NAME = "lockstep.invalid"
"""The name in every certificate: it names nobody, and no name server knows it."""

OID = x509.ObjectIdentifier("2.25.279246563104783962351298045931163420411")
"""The object identifier of the extension, in an arc that needs no registration (ITU-T X.667)."""

BYTES_MAX = 4096
"""Bytes of a certificate at most; ours have some 500."""

_DOMAIN = b"lockstep.tls.v1"


def certificate(
    key: Ed25519PrivateKey,
    channel_key: EllipticCurvePrivateKey,
    not_before: datetime,
    not_after: datetime,
) -> bytes:
    """A certificate in PEM for `channel_key`, for which `key` vouches."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    info = channel_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    voucher = public_bytes(key) + key.sign(_DOMAIN + info)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(channel_key.public_key())
        .serial_number(int.from_bytes(voucher[KEY_BYTES : KEY_BYTES + 16], "big") >> 1 or 1)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.UnrecognizedExtension(OID, voucher), critical=False)
        .sign(channel_key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.PEM)


def vouching_key(certificate_der: bytes) -> bytes:
    """The ed25519 key that vouches for a certificate, 32 bytes.

    Raises `RemoteProtocolError` for a certificate that no key vouches for.
    """
    if len(certificate_der) > BYTES_MAX:
        raise RemoteProtocolError(
            f"expected a certificate of at most {BYTES_MAX} bytes, got {len(certificate_der)}"
        )
    try:
        shown = x509.load_der_x509_certificate(certificate_der)
        extension = shown.extensions.get_extension_for_oid(OID).value
        info = shown.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except x509.ExtensionNotFound:
        raise RemoteProtocolError(
            "expected a certificate of Lockstep, got one of another server"
        ) from None
    except Exception as error:  # a stranger's bytes; the parser raises many kinds
        raise RemoteProtocolError(f"expected a certificate, got {type(error).__name__}") from None
    voucher = extension.value if isinstance(extension, x509.UnrecognizedExtension) else b""
    if len(voucher) != KEY_BYTES + SIGNATURE_BYTES:
        raise RemoteProtocolError(
            f"expected a certificate with a key and a signature of {KEY_BYTES + SIGNATURE_BYTES} "
            f"bytes, got {len(voucher)}"
        )
    key, signature = voucher[:KEY_BYTES], voucher[KEY_BYTES:]
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _DOMAIN + info)
    except InvalidSignature:
        raise RemoteProtocolError(
            "expected a certificate signed by the key that it names, got another signature"
        ) from None
    return key
