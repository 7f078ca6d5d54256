"""The pages of the HTTP port: probes, metrics and the status page."""

import json
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST

from serve_grpc import status_page
from serve_grpc.health import Health
from serve_grpc.http import TEXT, Pages
from serve_grpc.metrics import Metrics
from serve_grpc.overview import Overview
from serve_grpc.rest import JSON, Page


def pages(health: Health, metrics: Metrics, overview: Overview) -> Pages:
    """path -> what makes its page."""

    def readyz() -> Page:
        if health.ready:
            return Page(HTTPStatus.OK, TEXT, b"ready\n")
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, TEXT, b"not ready\n")

    return {
        "/": lambda: Page(HTTPStatus.OK, "text/html; charset=utf-8", status_page.render(overview.read())),
        "/status.json": lambda: Page(HTTPStatus.OK, JSON, json.dumps(overview.read()).encode() + b"\n"),
        "/metrics": lambda: Page(HTTPStatus.OK, CONTENT_TYPE_LATEST, metrics.text()),
        "/healthz": lambda: Page(HTTPStatus.OK, TEXT, b"alive\n"),
        "/readyz": readyz,
    }
