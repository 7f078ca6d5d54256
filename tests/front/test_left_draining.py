"""preStop also runs before a server's liveness probe restarts it: what brings the Envoy back that was sent away by it."""

import json
import socket

from jaxport.cli import main
from tests.deploy.objects import Pod, of_kind, plain
from tests.front.conftest import NewProxy
from tests.server_process import eventually


def refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_port_that_the_liveness_probe_asks_is_closed_and_the_admin_answers(new_proxy: NewProxy) -> None:
    with new_proxy() as envoy:
        host, _, port = envoy.front.rpartition(":")
        socket.create_connection((host, int(port)), timeout=5).close()
        assert (
            main(["drain", "--admin-socket", str(envoy.admin_socket), "--seconds", "5", "--propagate", "0.1"])
            == 0
        )
        eventually(lambda: refused(host, int(port)), "the port is closed", 5)
        assert json.loads(envoy.admin("GET", "/server_info"))["state"] != "LIVE"


def test_the_liveness_probe_asks_by_tcp_a_port_that_is_closed_then() -> None:
    [server] = of_kind(plain(), "Deployment")
    envoy = Pod(server, server["spec"]["template"]).container("envoy")
    assert envoy is not None
    probe = envoy.spec["livenessProbe"]
    ports = {each["name"]: each["containerPort"] for each in envoy.ports}
    assert ports[probe["tcpSocket"]["port"]] == 8502
    assert probe["periodSeconds"] * probe["failureThreshold"] <= 60
