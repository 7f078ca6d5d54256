"""Who may ask, and for which models: bearer tokens and certificate names in a file that is read again when it changes.

    # a line for each caller; without models= every model
    <token>                      models=mlp,tokens
    cn:<name in a certificate>   models=mlp

A Kubernetes Secret is such a file: it changes by the swap of a link, so the file is looked at, never watched.
"""

import hashlib
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from serve_grpc.catalog import Catalog, Choice, VersionInfo
from serve_grpc.changes import Changes
from serve_grpc.errors import ConfigError, PermissionDenied, Unauthenticated
from serve_grpc.transport import Metadata

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
# RFC 6750, section 2.1: what may stand after "Bearer".
TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
# Anyone may try as often as the network carries: 16 characters of base64 are 96 bits.
SHORTEST_TOKEN = 16
MOST_BYTES = 2**20


@dataclass(frozen=True)
class Caller:
    """Who asks. models: those it may use; None: every one."""

    models: frozenset[str] | None = None

    def may(self, model: str) -> None:
        """Raises PermissionDenied, whether or not there is such a model."""
        if self.models is not None and model not in self.models:
            raise PermissionDenied(
                f"model {model!r} is not one that this caller may use; it is not in its models="
            )

    def sees(self, catalog: Catalog) -> Catalog:
        """The catalog without the models it may not use."""
        return catalog if self.models is None else Permitted(catalog, self)


class Permitted(Catalog):
    """What one caller sees of a catalog. Read only."""

    def __init__(self, catalog: Catalog, caller: Caller) -> None:
        self.surveyed = catalog.surveyed
        self._catalog = catalog
        self._caller = caller

    def models(self) -> dict[str, list[VersionInfo]]:
        """Those it may use."""
        allowed = self._caller.models or frozenset()
        return {name: versions for name, versions in self._catalog.models().items() if name in allowed}

    def choice(self, model: str) -> Choice:
        """An empty one for a model it may not use."""
        return self._catalog.choice(model) if model in (self._caller.models or ()) else Choice()

    def version(self, model: str, version: int, label: str = "") -> VersionInfo:
        """Raises PermissionDenied for a model it may not use."""
        self._caller.may(model)
        return super().version(model, version, label)


@dataclass(frozen=True)
class Grants:
    """One reading of the file. tokens: sha256 of a token -> who has it. names: name in a certificate -> who has it.

    Looking a digest up takes a time that says nothing about the token: nobody can choose a digest.
    """

    tokens: Mapping[bytes, Caller] = field(default_factory=dict)
    names: Mapping[str, Caller] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"tokens={len(self.tokens)} certificates={len(self.names)}"


class Access:
    """The grants of a file. `caller` may be called from any thread.

    Raises ConfigError for a file that cannot be read or is not as it must be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes = Changes([path])
        self._grants = read_grants(path)
        self._wrong = ""  # with the last reading
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="access", daemon=True)

    def __str__(self) -> str:
        return str(self._grants)

    def caller(self, metadata: Metadata, subject: str) -> Caller:
        """Who sent a request; subject: the name in its proven certificate, or "". Raises Unauthenticated."""
        grants = self._grants
        given = [value for key, value in metadata if key == "authorization"]
        if not given:
            if subject and subject in grants.names:
                return grants.names[subject]
            raise Unauthenticated("the request has no token; needed: authorization: Bearer TOKEN")
        token = _bearer(given[0]) if len(given) == 1 else None
        if token is None:
            raise Unauthenticated(
                "the authorization is not one bearer token; needed: authorization: Bearer TOKEN"
            )
        found = grants.tokens.get(hashlib.sha256(token).digest())
        if found is None:
            raise Unauthenticated("the token is not one of this server's --token-file")
        return found

    def start(self) -> None:
        """Begins to look for changes."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the looking."""
        self._stopping.set()

    def look(self) -> None:
        """Reads the file if it changed, or could not be read; one that is not right changes nothing."""
        if not self._changes.since_last() and not self._wrong:
            return
        try:
            self._grants = read_grants(self._path)
        except ConfigError as error:
            if str(error) != self._wrong:
                log.error("%s; the last good reading stays: %s", error, self._grants)
            self._wrong = str(error)
        else:
            self._wrong = ""
            log.info("read again token_file=%s %s", self._path, self._grants)

    def _watch(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self.look()


def read_grants(path: Path) -> Grants:
    """The file's. Raises ConfigError naming the line, never its token."""
    if path.is_fifo():  # opening one waits for who writes
        raise ConfigError(f"--token-file {path} is a pipe; needed: a file, which is read again")
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"--token-file {path} is no text; needed: a token on each line") from None
    except OSError as error:
        raise ConfigError(
            f"--token-file {path} cannot be read: {error.strerror}; name a file that can"
        ) from None
    if len(text) > MOST_BYTES:
        raise ConfigError(
            f"--token-file {path} has more than {MOST_BYTES} bytes; needed: a token on each line"
        )
    tokens: dict[bytes, Caller] = {}
    names: dict[str, Caller] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.split("#")[0].split():
            where = f"--token-file {path} line {number}"
            caller = Caller(_models(where, words[1:]))
            if words[0].startswith("cn:"):
                if words[0] == "cn:":
                    raise ConfigError(f"{where}: cn: has no name; needed: that in a certificate")
                _add(where, names, words[0].removeprefix("cn:"), caller)
            else:
                _check_token(where, words[0])
                _add(where, tokens, hashlib.sha256(words[0].encode()).digest(), caller)
    if not tokens and not names:
        raise ConfigError(f"--token-file {path} names nobody; needed: a token on each line")
    return Grants(tokens, names)


def _check_token(where: str, token: str) -> None:
    if not TOKEN.fullmatch(token):
        raise ConfigError(f"{where}: a token has letters, digits and -._~+/ only, = at its end")
    if len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"{where}: the token has {len(token)} characters; needed: at least {SHORTEST_TOKEN}"
        )


def _models(where: str, words: list[str]) -> frozenset[str] | None:
    if not words:
        return None
    key, equals, value = words[0].partition("=")
    models = frozenset(name for name in value.split(",") if name)
    if len(words) > 1 or key != "models" or not equals or not models:
        raise ConfigError(f"{where}: after the caller stands something else than models=NAME,NAME")
    return models


def _add[K](where: str, callers: dict[K, Caller], key: K, caller: Caller) -> None:
    if key in callers:
        raise ConfigError(f"{where}: this caller stands in a line above too; needed: one line")
    callers[key] = caller


def _bearer(value: str | bytes) -> bytes | None:
    text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    scheme, _, token = text.partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None
