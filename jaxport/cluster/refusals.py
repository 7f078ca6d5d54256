"""What a failed request means: one line for a person, of the class that says what can be done about it."""

import re
from typing import Any

import urllib3
from kubernetes.client import ApiException

from jaxport.cluster.answered import parsed
from jaxport.cluster.errors import (
    ClientError,
    Expired,
    Forbidden,
    NotFit,
    NotThere,
    Taken,
    Unreachable,
    UsageError,
)

# jobs.batch "x" is forbidden: User "u" cannot create resource "jobs" in API group "batch" in the namespace "n"
_CANNOT = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\w+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)?'
)
_LONGEST = 400
_LATER = (429, 500, 502, 503, 504)


def explained(error: Exception, host: str, what: str) -> ClientError:
    """`error` of the library as one of ours. what: "get /api/v1/..."."""
    if isinstance(error, ApiException) and error.status:
        return of_status(_status(error), what, host)
    if isinstance(error, ApiException | urllib3.exceptions.SSLError):
        reason = _reason(error)
        who = "certificate-authority of the kubeconfig's cluster has to be who signed the API's certificate"
        return NotFit(
            f"{host}: TLS failed: {reason}; {who if 'certificate' in reason else 'is it https there?'}"
        )
    if isinstance(error, urllib3.exceptions.HTTPError):
        return Unreachable(
            f"{host} does not answer: {_reason(error)}; is it the right --context, and is there a way to it?"
        )
    return NotFit(f"{host}: {_reason(error)}")


def of_status(status: dict[str, Any], what: str, host: str = "the API") -> ClientError:
    """What a Status object of the API says."""
    code, message = (
        status.get("code"),
        one_line(status.get("message") or status.get("reason") or "no reason given"),
    )
    if code == 401:
        return NotFit(
            f"{host} does not know who asks (401): the credentials are missing or expired; log in again"
        )
    if code == 403:
        return _forbidden(message)
    if code == 404:
        return _not_there(message, what)
    if code == 409:
        return Taken(message)
    if code == 410:
        return Expired(message)
    if code in _LATER:
        return Unreachable(f"{host} cannot answer {what} now ({code}): {message}")
    return UsageError(f"{what}: refused ({code}): {message}")


def is_of_another(error: ApiException) -> bool:
    """Whether an answer that fails is a page, or JSON that is no Status.

    The API itself answers a path that it does not know in plain text.
    """
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else error.body or ""
    if body.lstrip().startswith("<"):
        return True
    try:
        found = parsed(body)
    except ValueError:
        return False
    return not (isinstance(found, dict) and found.get("kind") == "Status")


def _forbidden(message: str) -> Forbidden:
    found = _CANNOT.search(message)
    if not found:
        return Forbidden(f"refused: {message}")
    kind = found["resource"] + (f".{found['group']}" if found["group"] else "")
    where = f"in namespace {found['namespace']}" if found["namespace"] else "at cluster scope"
    role = "Role" if found["namespace"] else "ClusterRole"
    return Forbidden(
        f"forbidden: {found['user'] or 'nobody'} may not {found['verb']} {kind} {where}; "
        f"ask for a {role} with the verb {found['verb']} on {kind} there (docs/launcher.md has one)"
    )


def _not_there(message: str, what: str) -> NotThere:
    found = re.search(r'namespaces "([^"]*)" not found', message)
    if found:
        return NotThere(
            f"no namespace {found[1]}: `jaxport submit all` makes it with all else, "
            "kubectl apply -f deploy/00-namespace.yaml alone"
        )
    return NotThere(message if "not found" in message else f"{what}: not found: {message}")


def _status(error: ApiException) -> dict[str, Any]:
    """The Status that came with an error; a proxy on the way answers in its own words."""
    try:
        found = parsed(error.body or "")
        if isinstance(found, dict) and "message" in found:
            return found | {"code": error.status}
    except (ValueError, TypeError):
        pass
    text = error.body if isinstance(error.body, str) and "<" not in error.body else ""
    return {"code": error.status, "message": text.strip() or error.reason}


def _reason(error: Exception) -> str:
    """What it says, without the library's own objects before it."""
    cause = error.args[-1] if isinstance(error, urllib3.exceptions.ProtocolError) and error.args else error
    text = one_line(cause.reason if isinstance(cause, ApiException) else cause).removeprefix("SSLError ")
    text = re.sub(r"^\w+\(host=[^)]*\): |^[(\[]SSL: \w+\] |<[^>]* object at [^>]*>:? ?", "", text)
    return text.rstrip(".") or type(error).__name__


def one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
