"""Certificates for tests, made by openssl: an authority, and what it signs."""

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["Authority"]


class Authority:
    """Signs certificates for 127.0.0.1; skips the test where openssl is missing.

    Args:
        folder: where its files go; every name becomes ``NAME.pem`` and ``NAME.key``.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        self._folder = folder
        self._name = name
        self.ca = self._make(name, "-addext", "basicConstraints=critical,CA:TRUE")[0]

    def sign(
        self, name: str, host: str = "IP:127.0.0.1", subject: str | None = None
    ) -> tuple[str, str]:
        """Make a certificate for ``host``; return its file and that of its key.

        Without a ``subject`` it has its name as common name.
        """
        return self._make(
            name,
            *(() if subject is None else ("-subj", subject)),
            *("-CA", self.ca, "-CAkey", str(self._folder / f"{self._name}.key")),
            *("-addext", f"subjectAltName={host}", "-addext", "basicConstraints=CA:FALSE"),
        )

    def _make(self, name: str, *options: str) -> tuple[str, str]:
        cert, key = str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key")
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
                *("-keyout", key, "-out", cert, *options),
            ],
            check=True,
            capture_output=True,
            timeout=60,
        )
        return cert, key
