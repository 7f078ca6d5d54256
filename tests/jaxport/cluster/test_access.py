"""Which cluster is asked, as whom, and what is said when none answers."""

import base64
import http.server
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.config import incluster_config

from jaxport.cluster.access import Access, open_client
from jaxport.cluster.api import Api, Limits
from jaxport.cluster.errors import Unreachable
from tests.certificates import Authority
from tests.jaxport.cluster.conftest import Run, write_kubeconfig
from tests.jaxport.cluster.fake_api import FakeCluster, Log

STATUS = ("status", "--json")


def test_a_kubeconfig_says_where_and_as_whom(run: Run, cluster: FakeCluster) -> None:
    assert run(*STATUS).code == 0
    assert cluster.tokens == {"Bearer letmein"}
    cluster.tokens.clear()
    assert run(*STATUS, "--context", "nobody").code == 0
    assert cluster.tokens == {""}


def test_a_flag_goes_before_the_environment(
    run: Run, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = write_kubeconfig(tmp_path / "there", cluster.url)
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "nowhere", "http://127.0.0.1:1")))
    assert run(*STATUS, "--kubeconfig", str(there)).code == 0


def test_without_either_it_is_the_one_of_the_home(
    run: Run, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    lost = run(*STATUS)
    assert lost.code == 4 and lost.error.startswith(
        "no cluster: neither --kubeconfig, KUBECONFIG nor ~/.kube/config"
    )
    (tmp_path / ".kube").mkdir()
    write_kubeconfig(tmp_path / ".kube" / "config", cluster.url)
    assert run(*STATUS).code == 0


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--context", "prod"), 2, "--context prod: not in {0}; there: fake, nobody"),
        (("--kubeconfig", "none"), 2, "--kubeconfig none: no such file"),
        (("--kubeconfig", "broken"), 4, "kubeconfig broken: "),
        (("--kubeconfig", "empty"), 4, "kubeconfig empty: "),
        (("--kubeconfig", "lost"), 4, "kubeconfig lost: "),
        (("--kubeconfig", "bare"), 4, "kubeconfig bare: server '127.0.0.1:6443': needed: https://HOST:PORT"),
    ],
)
def test_a_kubeconfig_that_is_no_use_says_why(
    flags: tuple[str, ...],
    code: int,
    said: str,
    run: Run,
    kubeconfig: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken").write_text("{")
    Path("empty").write_text("")
    write_kubeconfig(Path("bare"), "127.0.0.1:6443")
    Path("lost").write_text(kubeconfig.read_text().replace("current-context: fake", "current-context: gone"))
    done = run(*STATUS, *flags)
    assert done.code == code and said.format(kubeconfig) in done.error


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("", 5, "it is no kubeconfig"),
        ("clusters", 5, "it is no kubeconfig"),
        ("contexts", [7], "kubeconfig strange: "),
        ("clusters.0.cluster", 5, "it is no kubeconfig"),
        ("clusters.0.cluster.server", 5, "it is no kubeconfig"),
        ("clusters.0.cluster.proxy-url", 5, "the proxy (proxy-url of the kubeconfig"),
        ("clusters.0.cluster.proxy-url", "a\nb", "the proxy (proxy-url of the kubeconfig"),
        ("users.0.user", 5, "it is no kubeconfig"),
        ("users.0.user.token", "secret\nb", "the token of the kubeconfig, or of the pod, has a line break"),
    ],
)
def test_a_kubeconfig_of_wrong_types_is_one_line(
    path: str,
    value: object,
    said: str,
    run: Run,
    kubeconfig: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = {"": yaml.safe_load(kubeconfig.read_text())}
    inner, last = whole, ""
    for part in path.split(".") if path else []:
        inner, last = inner[last], int(part) if part.isdigit() else part
    inner[last] = value
    Path("strange").write_text(yaml.safe_dump(whole[""]))
    done = run(*STATUS, "--kubeconfig", "strange")
    assert done.code == 4 and said in done.error and "secret" not in done.err, done


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("status", "-n", "a/../b?x"), "'a/../b?x' is no namespace; needed: at most 63 lower-case letters"),
        (("cancel", "all", "-n", "x" * 64), "is no namespace"),
        (("logs", "train", "-n", ""), "'' is no namespace"),
        (("logs", "train", "--tail", "x"), "'x' is no number of lines; needed: 0 or more"),
        (("logs", "train", "--tail", "-1"), "is no number of lines"),
        (("logs", "train", "--patience", "x"), "'x' is no time; needed: 0 to 86400 seconds"),
        (("submit", "train", "--patience", "nan"), "'nan' is no time"),
    ],
)
def test_a_flag_that_cannot_be_is_2_in_plain_words(
    command: tuple[str, ...], said: str, run: Run, cluster: FakeCluster
) -> None:
    done = run(*command)
    assert done.code == 2 and said in done.err and "Traceback" not in done.err
    assert cluster.requests == []


def test_a_credential_plugin_that_fails_is_not_taken_for_nobody(
    run: Run, cluster: FakeCluster, kubeconfig: Path
) -> None:
    config = yaml.safe_load(kubeconfig.read_text())
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "interactiveMode": "Never",
        "args": ["-c", "echo log in first >&2; exit 1"],
    }
    config["users"][0]["user"] = {"exec": plugin}
    kubeconfig.write_text(yaml.safe_dump(config))
    done = run(*STATUS)
    assert done.code == 4 and "its credential plugin failed" in done.error and "log in first" in done.error
    assert cluster.requests == []


def test_nobody_at_the_address_is_4_at_once(run: Run, tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:1", "http://no-such-host.invalid:6443"):
        begun = time.monotonic()
        done = run(*STATUS, "--kubeconfig", str(write_kubeconfig(tmp_path / "k", url)))
        assert done.code == 4 and done.error.startswith(f"{url} does not answer: "), done.err
        assert "object at 0x" not in done.error
        assert time.monotonic() - begun < 20


def test_an_api_that_is_too_slow_is_not_waited_for(cluster: FakeCluster, kubeconfig: Path) -> None:
    cluster.delay = 12
    api = Api(open_client(Access()), Limits(read=0.2))
    begun = time.monotonic()
    with pytest.raises(Unreachable, match="timed out"):
        api.get("/api/v1/namespaces")
    assert time.monotonic() - begun < 10


def test_a_log_that_falls_silent_is_noticed(cluster: FakeCluster, kubeconfig: Path) -> None:
    cluster.create(
        "/api/v1/namespaces/jaxport/pods", {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}
    )
    cluster.logs["p"] = Log([(1, "a line")])
    api = Api(open_client(Access()))
    lines = api.lines("/api/v1/namespaces/jaxport/pods/p/log", {"follow": "true"}, 0.3)
    assert next(lines) == "a line"
    with pytest.raises(Unreachable, match="timed out"):
        next(lines)


def test_credentials_that_have_expired_say_so(run: Run, cluster: FakeCluster) -> None:
    cluster.refuse("GET", "/", 401, "Unauthorized")
    done = run(*STATUS)
    assert done.code == 4 and "(401): the credentials are missing or expired; log in again" in done.error


@pytest.fixture(
    params=[
        (200, b"<html>a page</html>"),
        (404, b"\n<!DOCTYPE HTML><p>File not found"),
        (404, b'{"detail": "Not Found"}'),
    ],
    ids=["a page", "a page that is not found", "another's JSON"],
)
def page(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that is no Kubernetes."""
    code, body = request.param

    class Page(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PATCH = do_GET

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_what_is_no_kubernetes_is_one_line(run: Run, page: str, tmp_path: Path) -> None:
    done = run(*STATUS, "--kubeconfig", str(write_kubeconfig(tmp_path / "k", page)))
    assert done.code == 4 and page in done.error and "is it a Kubernetes API, " in done.error
    done = run("submit", "all", "--no-follow", "--kubeconfig", str(tmp_path / "k"))
    assert done.code == 4 and page in done.error and "is it a Kubernetes API, " in done.error


def test_a_proxy_of_the_environment_is_gone_through(
    run: Run, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", cluster.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    there = write_kubeconfig(tmp_path / "behind", "http://cluster.invalid:6443")
    assert run(*STATUS, "--kubeconfig", str(there)).code == 0
    assert cluster.seen("GET", "/jobs$")
    monkeypatch.setenv("no_proxy", "cluster.invalid")
    assert run(*STATUS, "--kubeconfig", str(there)).code == 4


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secure(authority: Authority):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("api"))
    made = FakeCluster(context)
    yield made
    made.close()


def test_tls_by_the_authority_of_the_kubeconfig_and_no_other(
    run: Run, secure: FakeCluster, authority: Authority, tmp_path: Path
) -> None:
    data = base64.b64encode(authority.ca.read_bytes()).decode()
    known = write_kubeconfig(tmp_path / "known", secure.url, **{"certificate-authority-data": data})
    assert run(*STATUS, "--kubeconfig", str(known)).code == 0
    unknown = write_kubeconfig(tmp_path / "unknown", secure.url)
    done = run(*STATUS, "--kubeconfig", str(unknown))
    assert done.code == 4
    assert done.error.startswith(f"{secure.url}: TLS failed: certificate verify failed")
    plain = write_kubeconfig(tmp_path / "plain", secure.url.replace("https", "http"))
    done = run(*STATUS, "--kubeconfig", str(plain))
    assert done.code == 4 and "does not answer" in done.error and "Connection aborted" not in done.error


def test_a_pod_uses_the_token_of_its_account(
    run: Run, secure: FakeCluster, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(secure.port))
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority.ca))
    without = run(*STATUS)
    assert without.code == 4 and "automountServiceAccountToken: true" in without.error
    (tmp_path / "token").write_text("of-the-pod")
    assert run(*STATUS).code == 0
    assert {token.lower() for token in secure.tokens} == {"bearer of-the-pod"}
