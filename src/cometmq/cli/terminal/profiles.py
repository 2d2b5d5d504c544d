"""Profiles: a name for each cluster, with its name servers and how to connect.

They are in ``profiles.json`` of the user's configuration folder (``XDG_CONFIG_HOME/cometmq``, by
default ``~/.config/cometmq``), or in the file that COMETMQ_PROFILES names.  The file has no secret:
a profile may name a file that has one, which others must not be able to read.
"""

import json
import os
import stat
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cometmq.errors import ConfigError

__all__ = ["Profile", "Profiles", "read_secret"]


@dataclass(frozen=True)
class Profile:
    """How to reach one cluster; empty texts are what was not set."""

    name_server: str
    access_key: str = ""
    secret_file: str = ""
    tls: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""


@dataclass
class Profiles:
    """All profiles, and the name of the one that commands use; empty for none."""

    path: Path
    current: str = ""
    by_name: dict[str, Profile] = field(default_factory=dict)

    @classmethod
    def load(cls) -> "Profiles":
        """Read the file; without one there are no profiles.

        Raises:
            ConfigError: the file is no table of profiles.
        """
        path = _path()
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        try:
            data = json.loads(text)
            by_name = {name: _profile(each) for name, each in data["profiles"].items()}
            return cls(path, str(data.get("current", "")), by_name)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no table of profiles ({error}); mend it, or remove it"
            ) from error

    def save(self) -> None:
        """Write the file, which only its owner may read.

        Raises:
            ConfigError: the folder cannot be written.
        """
        data = {
            "current": self.current,
            "profiles": {name: asdict(each) for name, each in sorted(self.by_name.items())},
        }
        temporary = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
            temporary.replace(self.path)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from error

    def named(self, name: str) -> Profile:
        """The profile of a name.

        Raises:
            ConfigError: there is none; the text names those that there are.
        """
        if name not in self.by_name:
            names = ", ".join(sorted(self.by_name)) or "none; add one with cometmq profile set"
            raise ConfigError(f"no profile is called {name}; there are {names}")
        return self.by_name[name]

    def chosen(self, name: str | None) -> Profile | None:
        """The profile of a name, or the one that commands use; None if there is none.

        Raises:
            ConfigError: there is none of this name.
        """
        wanted = name or self.current
        return self.named(wanted) if wanted else None


def _path() -> Path:
    named = os.environ.get("COMETMQ_PROFILES")
    if named:
        return Path(named)
    folder = os.environ.get("XDG_CONFIG_HOME")
    try:
        home = Path(folder) if folder else Path.home() / ".config"
    except RuntimeError:  # a user without an entry and without HOME, as in a container
        home = Path(".config")
    return home / "cometmq" / "profiles.json"


def _profile(data: dict[str, Any]) -> Profile:
    names = {each.name for each in fields(Profile)}
    return Profile(**{name: str(value) for name, value in data.items() if name in names})


def read_secret(path: str) -> str:
    """The secret in a file, without the line's end.

    Raises:
        ConfigError: the file cannot be read, is empty, or others may read it.
    """
    file = Path(path).expanduser()
    try:
        mode = file.stat().st_mode
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the secret in {path} cannot be read: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"others may read {path}, which has a secret: chmod 600 {path}")
    if not secret:
        raise ConfigError(f"{path} is empty; it should have a secret")
    return secret
