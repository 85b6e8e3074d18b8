"""The certificates of a federation: an authority of its own, the hub's TLS certificate, and the sites' node keys.

Everything is ECDSA: P-256 for TLS, and P-384 in OpenSSH's form for the keys Flower knows its nodes by.

Guarantee: private keys are written whole, readable by their owner only, and never over an existing one unless forced;
the authority can sign servers and nothing below them. Whoever holds its key can pose as the hub to every site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from kohort.crypto.identity.guarded_files import PRIVATE, UNCHANGED, read_guarded
from kohort.errors import ConfigError, IntegrityError
from kohort.files import require_new, write_atomic

if TYPE_CHECKING:
    from cryptography import x509

__all__ = [
    "CertificateFacts",
    "KeyFiles",
    "check_certificate",
    "issue_server_certificate",
    "make_ca",
    "make_node_key",
    "node_key_to_register",
    "node_public_key",
]

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_BACKDATED = timedelta(days=1)  # clocks of hospitals differ
_MOST_DAYS = 36_500
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True)
class KeyFiles:
    """Where a private key lies, and its public half or certificate."""

    private: Path
    public: Path


@dataclass(frozen=True)
class CertificateFacts:
    """What a certificate says."""

    names: tuple[str, ...]
    days_left: int
    is_authority: bool


def make_ca(
    folder: Path,
    *,
    name: str = "kohort federation",
    days: int = 3650,
    passphrase: str | None = None,
    now: datetime | None = None,
    force: bool = False,
) -> KeyFiles:
    """Make a certificate authority for one federation: `ca.pem`, which every site gets, and `ca-key.pem`, which stays.

    Args:
        folder: Where both files go.
        name: Common name of the authority.
        days: How many days the certificate is valid, from 1 to 36,500.
        passphrase: Encrypts the private key; None leaves it readable to its owner.
        now: Start of the validity; None: the clock of this machine. It begins a day earlier, as clocks differ.
        force: Replace existing files.

    Returns:
        The paths of the two files.

    Raises:
        ConfigError: A file exists and `force` is not given, or the number of days is out of range.
    """
    from cryptography import x509

    files = KeyFiles(folder / "ca-key.pem", folder / "ca.pem")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(name)
    usage = _usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(subject, subject, key.public_key(), days=days, now=now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(files, key, certificate, passphrase=passphrase, force=force)
    return files


def issue_server_certificate(
    folder: Path,
    names: Iterable[str],
    *,
    days: int = 397,
    passphrase: str | None = None,
    now: datetime | None = None,
    force: bool = False,
) -> KeyFiles:
    """Issue the hub's `server.pem` and `server-key.pem`, signed by the authority in `folder`.

    Args:
        folder: Holds `ca.pem` and `ca-key.pem`, and gets the two new files.
        names: Host names and addresses that sites reach the hub by; the loopback names are always added.
        days: How many days the certificate is valid, no longer than its authority.
        passphrase: The authority's. The server's own key has none, as Flower reads it without.
        now: Start of the validity; None: the clock of this machine.
        force: Replace existing files.

    Returns:
        The paths of the two new files.

    Raises:
        ConfigError: A name is no host name, the passphrase is wrong, the days are out of range or outlast the
            authority, or a file exists and `force` is not given.
        IntegrityError: The authority's files are damaged or do not belong together.
        RefusedError: Others may read the authority's key or change its certificate.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    files = KeyFiles(folder / "server-key.pem", folder / "server.pem")
    wanted = list(dict.fromkeys([*(_checked_name(name) for name in names), *LOOPBACK]))
    authority = _load_certificate(folder / "ca.pem")
    signer = _load_ca_key(folder / "ca-key.pem", passphrase)
    if signer.public_key() != authority.public_key():
        raise IntegrityError(
            f"ca.pem and ca-key.pem in {folder} do not belong together", hint="Restore both from one backup"
        )
    if _utc(now) + timedelta(days=min(days, _MOST_DAYS)) > authority.not_valid_after_utc:
        raise ConfigError(
            "the certificate would outlive its authority", hint="Ask for fewer days, or make a new authority"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([_general_name(name) for name in wanted])
    certificate = (
        _builder(_subject(wanted[0]), authority.subject, key.public_key(), days=days, now=now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    _write(files, key, certificate, passphrase=None, force=force)
    return files


def check_certificate(
    path: Path, now: datetime | None = None, *, name: str | None = None, authority: Path | None = None
) -> CertificateFacts:
    """Check a certificate as a site will when it connects, and read it.

    Args:
        path: The certificate, in PEM.
        now: The time to check its dates at; None: the clock of this machine.
        name: Host name or address that it must be for; None checks none.
        authority: Certificate of the authority that must have signed it; None checks no signature.

    Returns:
        What the certificate says.

    Raises:
        IntegrityError: It is damaged, expired, not yet valid, for other names, or not signed by a valid authority.
        ConfigError: A file cannot be read.
        RefusedError: Others may change a file.
    """
    certificate, today = _load_certificate(path), _utc(now)
    if today > certificate.not_valid_after_utc:
        raise IntegrityError(
            f"the certificate {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}",
            hint="Issue a new one at the hub; if it should still hold, set this machine's clock",
        )
    if today < certificate.not_valid_before_utc:
        raise IntegrityError(
            f"the certificate {path} holds only from {certificate.not_valid_before_utc:%Y-%m-%d} on",
            hint="Set the clock of this machine, or of the one that issued it",
        )
    names = _names_of(certificate)
    if name is not None and not any(_same_host(name, other) for other in names):
        raise IntegrityError(
            f"the certificate {path} is not for {name!r}",
            hint=f"It is for {', '.join(names) or 'no host'}: reach the hub by one of these, or issue another",
        )
    if authority is not None:
        _check_signed(path, certificate, authority, today)
    return CertificateFacts(names, (certificate.not_valid_after_utc - today).days, _is_authority(certificate))


def make_node_key(path: Path, *, force: bool = False) -> KeyFiles:
    """Make a site's key for Flower's node authentication: `path` for `--auth-supernode-private-key`, and `path`.pub.

    Args:
        path: Where the private key goes.
        force: Replace existing files.

    Returns:
        The paths of the two files.

    Raises:
        ConfigError: A file exists and `force` is not given.
    """
    files = KeyFiles(path, path.with_name(path.name + ".pub"))
    for file in (files.private, files.public):
        require_new(file, force=force)
    key = ec.generate_private_key(ec.SECP384R1())
    write_atomic(
        files.private,
        key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()),
        durable=True,
        private=True,
    )
    write_atomic(files.public, _ssh_line(key.public_key()), durable=True)
    return files


def node_public_key(path: Path) -> bytes:
    """The public half of the node key in `path`, as the line a hub's operator is given.

    Args:
        path: The private node key, from `make_node_key`.

    Returns:
        The line, in OpenSSH's format.

    Raises:
        IntegrityError: The file holds no node key.
        ConfigError: The file cannot be read.
        RefusedError: Others may read or change the file.
    """
    try:
        key = load_ssh_private_key(read_guarded(path, forbidden=PRIVATE), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _no_node_key(str(path)) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise _no_node_key(str(path))
    return _ssh_line(key.public_key())


def node_key_to_register(line: bytes) -> bytes:
    """A node's public key as Flower's SuperLink stores it: PEM, from the OpenSSH line the site sent.

    Args:
        line: The line that the site sent, from `node_public_key`.

    Returns:
        The key in PEM.

    Raises:
        IntegrityError: The line holds no node key.
    """
    try:
        key = load_ssh_public_key(line.strip())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _no_node_key("the text") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise _no_node_key("the text")
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _no_node_key(what: str) -> IntegrityError:
    return IntegrityError(f"{what} is not a node key", hint="Make one with: kohort site init")


def _ssh_line(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"


def _utc(now: datetime | None) -> datetime:
    return datetime.now(UTC) if now is None else now.astimezone(UTC)


def _checked_name(name: str) -> str:
    if not isinstance(_address(name), str) or _HOST.fullmatch(name):
        return name
    raise ConfigError(f"{name!r} is neither a host name nor an address", hint="For example hub.example.org or 10.0.0.5")


def _address(name: str) -> IPv4Address | IPv6Address | str:
    try:
        return ip_address(name)
    except ValueError:
        return name.lower()


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    found = _address(name)
    return x509.DNSName(found) if isinstance(found, str) else x509.IPAddress(found)


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    except ValueError as error:
        raise ConfigError("an authority needs a name", hint="For example the federation's") from error


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    from cryptography import x509

    if not 1 <= days <= _MOST_DAYS:
        raise ConfigError(f"a certificate holds for 1 to {_MOST_DAYS} days", hint="Ask for another number of days")
    start = _utc(now)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATED)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _write(
    files: KeyFiles,
    key: ec.EllipticCurvePrivateKey,
    certificate: x509.Certificate,
    *,
    passphrase: str | None,
    force: bool,
) -> None:
    for file in (files.private, files.public):
        require_new(file, force=force)
    if passphrase == "":
        raise ConfigError("the passphrase is empty", hint="Give one, or none at all")
    locked = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked)
    write_atomic(files.private, private, durable=True, private=True)
    write_atomic(files.public, certificate.public_bytes(Encoding.PEM), durable=True)


def _load_certificate(path: Path) -> x509.Certificate:
    from cryptography import x509

    content = read_guarded(path, forbidden=UNCHANGED)
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError as error:
        raise IntegrityError(f"{path} is not a certificate", hint="Give a PEM file, or issue a new one") from error


def _load_ca_key(path: Path, passphrase: str | None) -> ec.EllipticCurvePrivateKey:
    content = read_guarded(path, forbidden=PRIVATE)
    try:
        key = load_pem_private_key(content, None if passphrase is None else passphrase.encode())
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} does not open", hint="Give the authority's passphrase if it has one, and none if not"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IntegrityError(f"{path} is not an authority's key", hint="Restore it from a backup")
    return key


def _names_of(certificate: x509.Certificate) -> tuple[str, ...]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (
        *found.get_values_for_type(x509.DNSName),
        *(str(address) for address in found.get_values_for_type(x509.IPAddress)),
    )


def _same_host(name: str, other: str) -> bool:
    wanted, found = _address(name), _address(other)
    if isinstance(wanted, str) and isinstance(found, str) and found.startswith("*."):
        return wanted.partition(".")[2] == found[2:]
    return wanted == found


def _is_authority(certificate: x509.Certificate) -> bool:
    from cryptography import x509

    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def _check_signed(path: Path, certificate: x509.Certificate, authority: Path, today: datetime) -> None:
    issuer = _load_certificate(authority)
    try:
        certificate.verify_directly_issued_by(issuer)
        signed = _is_authority(issuer)
    except (ValueError, TypeError, InvalidSignature):
        signed = False
    if not signed:
        raise IntegrityError(
            f"the certificate {path} was not issued by the authority {authority}",
            hint="Get ca.pem from the hub's operator again, and compare it with theirs",
        )
    if not issuer.not_valid_before_utc <= today <= issuer.not_valid_after_utc:
        raise IntegrityError(f"the authority {authority} is not valid today", hint="Make a new one at the hub")
