"""Which cluster, and as whom: a kubeconfig, or the ServiceAccount of the pod that this runs in."""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import urllib3
import yaml
from kubernetes import client, config

from jaxport.cluster.errors import NotFit, UsageError

DEFAULT = Path("~/.kube/config")
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
# What the library raises of a file that says something else than a kubeconfig does.
WRONG_TYPES = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Access:
    """kubeconfig: files, separated as in PATH; None: KUBECONFIG, else ~/.kube/config, else the pod's own account.

    context: one of its contexts; None: its current one.
    """

    kubeconfig: str | None = None
    context: str | None = None


def open_client(access: Access) -> client.ApiClient:
    """A client of the official library, not connected yet.

    Raises:
        UsageError: no such file or context. NotFit: nothing says where a cluster is, or the kubeconfig is no use.
    """
    settings = client.Configuration()
    # A failed request is ours to judge: some are asked again, and each failure is told in one line.
    settings.retries = False  # pyright: ignore[reportAttributeAccessIssue]
    # Watches and logs are silent for long, and what is between here and the API forgets silent connections.
    settings.keep_alive = True
    files = _files(access)
    if files is None:
        _as_pod(settings)
    else:
        _as_user(settings, files, access.context)
    # Neither is said: both may hold a secret.
    if any(not str(key).isprintable() for key in (settings.api_key or {}).values()):
        raise NotFit(
            "the token of the kubeconfig, or of the pod, has a line break or the like in it; get a new one"
        )
    try:
        return client.ApiClient(settings)
    except (urllib3.exceptions.HTTPError, *WRONG_TYPES) as error:
        raise NotFit(
            "the proxy (proxy-url of the kubeconfig, or HTTPS_PROXY) is no address; needed: http://HOST:PORT"
        ) from error


def _files(access: Access) -> str | None:
    """The kubeconfig to read; None where the pod's own account is to be taken."""
    if access.kubeconfig is not None:
        return _present(access.kubeconfig, "--kubeconfig")
    if os.environ.get("KUBECONFIG"):
        return _present(os.environ["KUBECONFIG"], "KUBECONFIG")
    if DEFAULT.expanduser().exists():
        return str(DEFAULT.expanduser())
    if access.context is not None:
        raise UsageError(
            f"--context {access.context}: there is no kubeconfig to have it; give --kubeconfig FILE"
        )
    if os.environ.get(IN_CLUSTER):
        return None
    raise NotFit(
        f"no cluster: neither --kubeconfig, KUBECONFIG nor {DEFAULT} says where one is, and this is no pod of one; "
        "get a kubeconfig (gcloud container clusters get-credentials, kind export kubeconfig)"
    )


def _present(files: str, source: str) -> str:
    if not any(Path(each).expanduser().exists() for each in files.split(os.pathsep) if each):
        raise UsageError(f"{source} {files}: no such file; needed: a kubeconfig")
    return files


def _as_pod(settings: client.Configuration) -> None:
    try:
        config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise NotFit(
            f"in a pod without a token of its ServiceAccount ({error}); "
            "set automountServiceAccountToken: true on the pod, or give --kubeconfig"
        ) from error


def _as_user(settings: client.Configuration, files: str, context: str | None) -> None:
    if context is not None:
        _require_context(files, context)
    said: list[str] = []
    try:
        with _heard(said):
            config.load_kube_config(
                config_file=files, context=context, client_configuration=settings, persist_config=False
            )
    except (
        config.ConfigException,
        OSError,
        yaml.YAMLError,
    ) as error:
        raise NotFit(f"kubeconfig {files}: {_line(error)}") from error
    except WRONG_TYPES as error:
        # The library looks at no type; what it then says names no field.
        raise NotFit(
            f"kubeconfig {files}: it is no kubeconfig, or one of its fields is not what it has to be ({_line(error)}); "
            "get a new one (gcloud container clusters get-credentials, kind export kubeconfig)"
        ) from error
    if not settings.host.startswith(("https://", "http://")):
        raise NotFit(f"kubeconfig {files}: server {settings.host!r}: needed: https://HOST:PORT")
    if said:
        # The library goes on without credentials; as nobody one is told "forbidden" and looks in the wrong place.
        raise NotFit(f"kubeconfig {files}: its credential plugin failed: {_line(said[0])}")


def _require_context(files: str, context: str) -> None:
    try:
        found, _ = config.list_kube_config_contexts(files)
    except (config.ConfigException, OSError, yaml.YAMLError, *WRONG_TYPES):
        return  # without a current context, for one; loading says what is wrong
    names = [str(dict(each)["name"]) for each in found]
    if context not in names:
        raise UsageError(f"--context {context}: not in {files}; there: {', '.join(names) or 'none'}")


@contextlib.contextmanager
def _heard(said: list[str]) -> Iterator[None]:
    """The library logs the failure of a credential plugin, and raises nothing."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    root, ear = logging.getLogger(), Ear(logging.ERROR)
    root.addHandler(ear)
    try:
        yield
    finally:
        root.removeHandler(ear)


def _line(error: object) -> str:
    return " ".join(str(error).split()) or type(error).__name__
