"""Certificates for a test: an authority, and what it signs."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Authority:
    """A certificate authority with its files in `folder`: ca.pem, and NAME.pem and NAME.key for each it signs."""

    def __init__(self, folder: Path, name: str = "test authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._certificate = self._sign(self._name, self._key, x509.BasicConstraints(True, None))
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(_pem(self._certificate))

    def sign(self, name: str, file: str = "") -> tuple[Path, Path]:
        """(certificate, key) for localhost and 127.0.0.1; the files are replaced as a whole."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = self._sign(_name(name), key, x509.SubjectAlternativeName(hosts))
        paths = self.folder / f"{file or name}.pem", self.folder / f"{file or name}.key"
        for path, content in zip(paths, (_pem(certificate), _key_pem(key)), strict=True):
            new = path.with_suffix(".new")
            new.write_bytes(content)
            new.rename(path)
        return paths

    def _sign(
        self, name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - DAY).not_valid_after(now + DAY)
        return builder.add_extension(extension, True).sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
