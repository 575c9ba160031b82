"""Addresses and the bytes of HTTP requests. Pure. Encoding happens before a round's
clock starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from k3perf.errors import UsageError, shortened

_PORTS: Final = {"http": 80, "https": 443}
_EXAMPLE: Final = "give a base URL such as http://127.0.0.1:8000 or https://host/prefix"
_VERSION_SUFFIX: Final = "/v1"
_HOST: Final = re.compile(r"[A-Za-z0-9._~%:-]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server's address, from a base URL such as ``http://127.0.0.1:8000``.

    ``path`` is a prefix without ``/v1``, which every route adds.
    """

    host: str
    port: int
    path: str
    secure: bool = False

    @classmethod
    def parse(cls, base_url: str) -> Endpoint:
        """Parse http and https URLs. A final ``/v1`` is accepted and means the same.

        Raises UsageError that shows what is wrong with the URL.
        """
        try:
            parts = urlsplit(base_url)
            host = parts.hostname
            problem = _problem(parts, host)
        except ValueError as error:
            # an unclosed bracket, or brackets around something else
            parts, host, problem = urlsplit(""), None, f"the host is not valid ({error})"
        if problem or host is None:
            # a password in the URL must not reach a log
            shown = shortened(re.sub(r"//[^/@]*@", "//...@", base_url))
            raise UsageError(f"cannot send load to {shown!r}: {problem}; {_EXAMPLE}")
        path = parts.path.rstrip("/").removesuffix(_VERSION_SUFFIX).rstrip("/")
        return cls(host, parts.port or _PORTS[parts.scheme], path, parts.scheme == "https")

    @property
    def authority(self) -> str:
        """Host and port as in a Host header. IPv6 hosts have brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def base_url(self) -> str:
        """The URL without ``/v1``."""
        return f"{'https' if self.secure else 'http'}://{self.authority}{self.path}"


def _problem(parts: SplitResult, host: str | None) -> str:
    """What is wrong with a base URL, or nothing."""
    if parts.scheme not in _PORTS:
        return "the URL begins with neither http:// nor https://"
    if not host:
        return "the host is missing"
    if _HOST.fullmatch(host) is None:
        return "the host holds characters that no host name has"
    if parts.username is not None:
        return "remove the user name and password, and set --api-key-env or --header"
    if parts.query or parts.fragment:
        return "remove everything from the first ? or #"
    if re.search(r"[^\x21-\x7e]", parts.path):
        return "the path holds a blank, a control or a non-ASCII character"
    try:
        port = parts.port
    except ValueError:
        port = 0
    return "the port is not a number from 1 to 65535" if port == 0 else ""


def http_request(
    endpoint: Endpoint, route: str, body: bytes, headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """The bytes of one POST on a kept-open connection."""
    lines = {
        "host": f"Host: {endpoint.authority}",
        "content-type": "Content-Type: application/json",
        "accept": "Accept: text/event-stream",
    }
    lines |= {name.lower(): f"{name}: {value}" for name, value in headers}
    lines["content-length"] = f"Content-Length: {len(body)}"
    head = "\r\n".join((f"POST {endpoint.path}{route} HTTP/1.1", *lines.values()))
    return head.encode("latin-1") + b"\r\n\r\n" + body


def checked_header(text: str) -> tuple[str, str]:
    """Split ``NAME: VALUE``. Raises UsageError for what cannot be sent, without showing
    the value, which may be a secret.
    """
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is None:
        raise UsageError(f"--header {shortened(name)!r}: write NAME: VALUE")
    if re.search(r"[^\x20-\x7e\x80-\xff\t]", value):
        raise UsageError(f"--header {name}: the value holds a character that no header can hold")
    if name.lower() in ("content-length", "transfer-encoding", "connection", "accept-encoding"):
        raise UsageError(f"--header {name}: k3perf sets this header; remove the option")
    return name, value
