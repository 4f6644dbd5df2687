"""Certificates for a loopback plane and its workers, made with `cryptography` for each test run."""

from __future__ import annotations

import datetime
import ipaddress
import os
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Pair(NamedTuple):
    """Paths of a chain and its key."""

    certificate: str
    key: str


class Authority:
    """One certificate authority in a private folder."""

    def __init__(self, folder: str) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named("test authority")
        self._certificate = (
            self._builder(self._name, self._key, days=3650)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.trust = os.path.join(folder, "trust.pem")
        _write(self.trust, self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, name: str = "plane") -> Pair:
        """A certificate for 127.0.0.1 and localhost."""
        names = [
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
            x509.DNSName("localhost"),
        ]
        return self._issue(name, ExtendedKeyUsageOID.SERVER_AUTH, names, 365)

    def client(self, name: str = "worker", *, days: int = 365) -> Pair:
        """A client's certificate; issued again it replaces the files."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH, [], days)

    def _issue(
        self, name: str, usage: x509.ObjectIdentifier, names: list[x509.GeneralName], days: int
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_named(name), key, days=days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        made = builder.sign(self._key, hashes.SHA256())
        pair = Pair(
            os.path.join(self.folder, f"{name}.pem"), os.path.join(self.folder, f"{name}.key")
        )
        _write(pair.certificate, made.public_bytes(serialization.Encoding.PEM))
        _write(
            pair.key,
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
        )


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _write(path: str, data: bytes) -> None:
    temporary = f"{path}.new"
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as opened:
        opened.write(data)
    os.replace(temporary, path)
