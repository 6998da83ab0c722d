"""A certificate authority, and what it signs."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Signed:
    certificate: bytes
    key: bytes

    def server_context(self, directory: Path, clients: bytes = b"") -> ssl.SSLContext:
        """Return the TLS of a server, which asks clients for certificates that this authority signed."""
        path = directory / "server.pem"
        path.write_bytes(self.certificate + self.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        if clients:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.load_verify_locations(cadata=clients.decode())
        return context


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("authority")
        self.certificate = _pem(self._sign("authority", self._key, is_authority=True))

    def signed(self, name: str, *addresses: str, days: float = 1) -> Signed:
        """Return a certificate that ends in this many days; a negative number: it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        return Signed(_pem(self._sign(name, key, addresses, days=days)), pem)

    def _sign(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        addresses: tuple[str, ...] = (),
        *,
        days: float = 1,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if addresses:
            names = [_general(address) for address in addresses]
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256())


def _general(address: str) -> x509.GeneralName:
    is_ip = address.replace(".", "").isdigit()
    return x509.IPAddress(ip_address(address)) if is_ip else x509.DNSName(address)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
