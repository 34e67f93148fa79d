"""``coalmine serve``: a local page of all runs.

The server listens on 127.0.0.1, answers GET only, and refuses requests for another host name, which is what DNS
rebinding from a foreign page would send. Reports are served unchanged, in a sandbox that cannot open connections.
"""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from urllib.parse import unquote, urlsplit

from coalmine import __version__
from coalmine.errors import InputError
from coalmine.files import json_text
from coalmine.results.manifest import verify
from coalmine.runs.comparison_page import page
from coalmine.runs.overview import Overview, report_of

HOST = "127.0.0.1"

_STRICT = "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; connect-src 'self'; "
_STRICT += "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# A report's charts need its own scripts. In a sandbox without connections, these reach nothing else.
_REPORT = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:; "
)
_REPORT += (
    "font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
)

_SCRIPT = (resources.files("coalmine.runs") / "serve.js").read_text(encoding="utf-8")


def _index(root: Path) -> str:
    heads = "".join(
        f'<th scope="col"{kind}>{name}</th>'
        for name, kind in (
            ("run", ""), ("title", ""), ("changed", ""), ("state", ""), ("progress", ' id="progress" hidden'),
            ("unit", ""), ("claimed ε", ' class="number"'), ("lower bound", ' class="number"'), ("verdict", ""),
        )
    )  # fmt: skip
    body = (
        f"<h1>Runs in {escape(str(root))}</h1>\n"
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody></tbody></table></div>\n'
        '<p id="status" role="status">…</p>\n<noscript><p>This page needs JavaScript to follow runs.</p></noscript>\n'
        '<script src="/app.js"></script>'
    )
    return page("coalmine: runs", body)


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    server: Server
    server_version = f"coalmine/{__version__}"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Send a page, the runs as JSON, or a report."""
        self._answer(head=False)

    def do_HEAD(self) -> None:
        """Send the headers only."""
        self._answer(head=True)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the terminal belongs to the user."""

    def _answer(self, *, head: bool) -> None:
        hosts = self.headers.get_all("Host") or []
        # Of two, a proxy may believe the other.
        if len(hosts) != 1 or hosts[0].lower() not in self.server.names:
            self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "This server answers for this machine only.", head)
            return
        path = urlsplit(self.path).path
        if path == "/":
            self._send(HTTPStatus.OK, "text/html", _index(self.server.root), head)
        elif path == "/app.js":
            self._send(HTTPStatus.OK, "text/javascript", _SCRIPT, head)
        elif path == "/api/runs":
            self._runs(head)
        elif path.startswith("/report/"):
            self._report(unquote(path.removeprefix("/report/")), head)
        else:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is no such page.", head)

    def _runs(self, head: bool) -> None:
        try:
            content, status = {"runs": self.server.overview.runs()}, HTTPStatus.OK
        except InputError as error:
            content, status = {"error": str(error)}, HTTPStatus.INTERNAL_SERVER_ERROR  # type: ignore[dict-item]
        self._send(status, "application/json", json_text(content, indent=None), head)

    def _report(self, name: str, head: bool) -> None:
        try:
            path = report_of(self.server.root, name)
            if path is not None:
                verify(path.parent)
            content = None if path is None else path.read_text(encoding="utf-8", errors="replace")
        except InputError as error:
            self._send(HTTPStatus.CONFLICT, "text/plain", str(error), head)
            return
        except (OSError, ValueError):
            content = None
        if content is None:
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is no such report.", head)
        else:
            self._send(HTTPStatus.OK, "text/html", content, head, policy=_REPORT)

    def _send(self, status: HTTPStatus, kind: str, content: str, head: bool, policy: str = _STRICT) -> None:
        data = content.encode("utf-8")
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(data))),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        if not head:
            self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """The server of the runs in ``root``, on a port of this machine; port 0 picks a free one."""

    daemon_threads = True
    request_queue_size = 128  # connections that wait, where http.server lets five

    def __init__(self, root: Path, port: int) -> None:
        if not root.is_dir():
            raise InputError(f"there is no directory {root}")
        self.root, self.overview = root, Overview(root)
        try:
            super().__init__((HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise InputError(f"port {port} is not available: {error}; choose another with --port") from None
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def address(self) -> str:
        """The URL to open."""
        return f"http://{HOST}:{self.server_port}/"
