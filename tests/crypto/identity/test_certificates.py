"""Certificates, judged by those who made none of them: Python's ssl, gRPC, a second verifier and Flower's loaders."""

from __future__ import annotations

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store

from kohort.crypto.identity.certificates import (
    check_certificate,
    issue_server_certificate,
    make_ca,
    make_node_key,
    node_key_to_register,
    node_public_key,
)
from kohort.errors import ConfigError, IntegrityError, RefusedError

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_ca(tmp_path)
    issue_server_certificate(tmp_path, ["hub.example.org", "10.1.2.3"])
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def shake_hands(server_folder: Path, authority: Path, name: str) -> None:
    """A TLS handshake in memory; ssl.SSLError when the client does not accept the server."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_folder / "server.pem", server_folder / "server-key.pem")
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(down, up, server_hostname=name),
        server.wrap_bio(up, down, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert sides[0].version() == "TLSv1.3"


@pytest.mark.parametrize("name", ["hub.example.org", "10.1.2.3", "localhost", "127.0.0.1", "::1"])
def test_a_tls_client_accepts_every_name_asked_for(folder: Path, name: str) -> None:
    shake_hands(folder, folder / "ca.pem", name)


def test_a_tls_client_refuses_other_names_and_other_authorities(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    make_ca(other)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"hub\.example\.com"):
        shake_hands(folder, folder / "ca.pem", "hub.example.com")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(folder, other / "ca.pem", "hub.example.org")


def test_a_second_verifier_accepts_the_chain_within_its_dates_only(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    policy = PolicyBuilder().store(Store([authority]))
    host = x509.DNSName("hub.example.org")
    policy.time(NOW + 390 * DAY).build_server_verifier(host).verify(server, [])
    for late in (398 * DAY, -2 * DAY):
        with pytest.raises(x509.verification.VerificationError):
            policy.time(NOW + late).build_server_verifier(host).verify(server, [])
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_grpc_accepts_the_certificate(folder: Path) -> None:
    grpc = pytest.importorskip("grpc")
    from concurrent.futures import ThreadPoolExecutor

    keys = ((folder / "server-key.pem").read_bytes(), (folder / "server.pem").read_bytes())
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([keys]))
    server.start()
    try:
        trusted = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
        with grpc.secure_channel(f"127.0.0.1:{port}", trusted) as channel:
            grpc.channel_ready_future(channel).result(timeout=10)
    finally:
        server.stop(None).wait()


def test_private_keys_are_private_and_never_overwritten(folder: Path) -> None:
    assert {mode(folder / name) for name in ("ca-key.pem", "server-key.pem")} == {0o600}
    before = (folder / "ca-key.pem").read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        make_ca(folder)
    with pytest.raises(ConfigError, match="exists"):
        issue_server_certificate(folder, ["hub"])
    assert (folder / "ca-key.pem").read_bytes() == before
    issue_server_certificate(folder, ["other"], force=True)
    assert check_certificate(folder / "server.pem").names == ("other", "localhost", "127.0.0.1", "::1")


def test_a_good_certificate_is_described(folder: Path) -> None:
    facts = check_certificate(folder / "server.pem", NOW, name="HUB.example.org", authority=folder / "ca.pem")
    assert facts.names == ("hub.example.org", "localhost", "10.1.2.3", "127.0.0.1", "::1")
    assert facts.days_left in {396, 397}
    assert not facts.is_authority
    assert check_certificate(folder / "ca.pem").is_authority


def test_a_bad_certificate_is_explained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    server, other = folder / "server.pem", tmp_path_factory.mktemp("other")
    make_ca(other)
    with pytest.raises(IntegrityError, match="expired on") as caught:
        check_certificate(server, NOW + 398 * DAY)
    assert caught.value.exit_code == 6
    with pytest.raises(IntegrityError, match=r"holds only from .* Set the clock"):
        check_certificate(server, NOW - 2 * DAY)
    check_certificate(server, NOW - DAY / 2)  # clocks differ a little
    with pytest.raises(IntegrityError, match=r"not for 'hub\.example\.com'.*hub\.example\.org"):
        check_certificate(server, name="hub.example.com")
    with pytest.raises(IntegrityError, match=r"not for '10\.1\.2\.4'"):
        check_certificate(server, name="10.1.2.4")
    with pytest.raises(IntegrityError, match="not issued by the authority"):
        check_certificate(server, authority=other / "ca.pem")
    with pytest.raises(IntegrityError, match="not issued by the authority"):  # a server is no authority
        check_certificate(server, authority=server)
    with pytest.raises(IntegrityError, match="expired"):
        check_certificate(folder / "ca.pem", NOW + 3651 * DAY)
    with pytest.raises(ConfigError, match="cannot read"):
        check_certificate(folder / "absent.pem")
    (folder / "text.pem").write_text("no certificate")
    with pytest.raises(IntegrityError, match="is not a certificate"):
        check_certificate(folder / "text.pem")


def test_a_server_cannot_play_the_authority(folder: Path) -> None:
    """The holder of the server's key signs a certificate of its own: signature and names fit, the right does not."""
    server = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    key = load_pem_private_key((folder / "server-key.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    forged = (
        x509.CertificateBuilder()
        .subject_name(server.subject)
        .issuer_name(server.subject)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .sign(key, hashes.SHA256())
    )
    (folder / "forged.pem").write_bytes(forged.public_bytes(Encoding.PEM))
    (folder / "forged.pem").chmod(0o600)
    forged.verify_directly_issued_by(server)  # the signature itself holds
    with pytest.raises(IntegrityError, match="not issued by the authority"):
        check_certificate(folder / "forged.pem", authority=folder / "server.pem")


def test_bad_requests_are_refused(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in ("", "hub example", "hub/..", "-hub", "hüb", "a" * 300, "hub\n", "*.example.org"):
        with pytest.raises(ConfigError, match="neither a host name nor an address"):
            issue_server_certificate(folder, [name], force=True)
    for days in (0, -1, 10**9):
        with pytest.raises(ConfigError):
            issue_server_certificate(folder, ["hub"], days=days, force=True)
        with pytest.raises(ConfigError):
            make_ca(folder, days=days, force=True)
    with pytest.raises(ConfigError, match="outlive its authority"):
        issue_server_certificate(folder, ["hub"], days=3651, force=True)
    with pytest.raises(ConfigError, match="cannot read"):
        issue_server_certificate(tmp_path_factory.mktemp("empty"), ["hub"])
    other = tmp_path_factory.mktemp("other")
    make_ca(other)
    (folder / "ca-key.pem").write_bytes((other / "ca-key.pem").read_bytes())
    with pytest.raises(IntegrityError, match="do not belong together"):
        issue_server_certificate(folder, ["hub"], force=True)
    (folder / "ca-key.pem").chmod(0o640)
    with pytest.raises(RefusedError, match="chmod 600"):
        issue_server_certificate(folder, ["hub"], force=True)


def test_an_authority_under_a_passphrase(tmp_path: Path) -> None:
    make_ca(tmp_path, passphrase="open sesame")
    assert b"ENCRYPTED" in (tmp_path / "ca-key.pem").read_bytes()
    for wrong in (None, "open"):
        with pytest.raises(ConfigError, match="passphrase"):
            issue_server_certificate(tmp_path, ["hub"], passphrase=wrong)
    issue_server_certificate(tmp_path, ["hub"], passphrase="open sesame")
    shake_hands(tmp_path, tmp_path / "ca.pem", "hub")
    with pytest.raises(ConfigError, match="empty"):
        make_ca(tmp_path, passphrase="", force=True)


def test_node_keys_are_what_flower_reads(tmp_path: Path) -> None:
    files = make_node_key(tmp_path / "keys" / "node")
    assert (mode(files.private), files.public.name) == (0o600, "node.pub")
    private = load_ssh_private_key(files.private.read_bytes(), None)  # as Flower's SuperNode loads it
    public = load_ssh_public_key(files.public.read_bytes())  # as `flwr supernode register` does
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    assert private.public_key() == public
    registered = node_key_to_register(files.public.read_bytes())
    assert load_pem_public_key(registered) == public
    assert node_public_key(files.private) == files.public.read_bytes()
    with pytest.raises(ConfigError, match="exists"):
        make_node_key(files.private)


def test_flower_registers_the_same_bytes(tmp_path: Path) -> None:
    register = pytest.importorskip("flwr.cli.supernode.register")
    files = make_node_key(tmp_path / "node")
    assert register.try_load_public_key(files.public) == node_key_to_register(files.public.read_bytes())


def test_what_is_no_node_key_is_refused(tmp_path: Path) -> None:
    for line in (b"", b"ssh-rsa AAAA", b"-----BEGIN PUBLIC KEY-----", b"\xff"):
        with pytest.raises(IntegrityError, match="not a node key"):
            node_key_to_register(line)
    files = make_node_key(tmp_path / "node")
    files.private.chmod(0o644)
    with pytest.raises(RefusedError, match="chmod 600"):
        node_public_key(files.private)
    (tmp_path / "text").write_text("text")
    (tmp_path / "text").chmod(0o600)
    with pytest.raises(IntegrityError, match="not a node key"):
        node_public_key(tmp_path / "text")
