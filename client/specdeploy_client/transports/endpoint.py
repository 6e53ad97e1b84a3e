"""Where a server is and how it is spoken to, from what the user wrote."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import SplitResult, urlsplit

from specdeploy.errors import ConfigError, RequestError, Violation

if TYPE_CHECKING:
    from specdeploy_client.transports.base import OpenedTransport


class EndpointKind(StrEnum):
    """Protocols the client speaks."""

    TRITON_GRPC = "triton-grpc"
    TRITON_HTTP = "triton-http"
    OPENAI_COMPLETIONS = "openai-completions"
    OPENAI_CHAT = "openai-chat"

    @property
    def is_openai(self) -> bool:
        """Whether it is one of the two OpenAI calls."""
        return self in (EndpointKind.OPENAI_COMPLETIONS, EndpointKind.OPENAI_CHAT)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files for `https` and `grpcs`. Without `ca_file` the system's authorities count; `cert_file` with `key_file`
    show who the client is; `verify` False accepts any certificate."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. `url` as the user wrote it; calls are added to `base_url`, `http(s)://host:port[/prefix]`."""

    kind: EndpointKind
    url: str
    base_url: str
    model: str = "llm"
    headers: tuple[tuple[str, str], ...] = ()
    tls: Tls = Tls()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the TCP connection."""
        parts = urlsplit(self.base_url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


T = TypeVar("T")
TRITON_MODEL = "llm"
_KIND_NAMES = ", ".join(kind.value for kind in EndpointKind)
_KIND_ALIASES = {"chat": EndpointKind.OPENAI_CHAT, "completions": EndpointKind.OPENAI_COMPLETIONS}  # AIPerf's names
_CALL_PATHS = {EndpointKind.OPENAI_CHAT: "/chat/completions", EndpointKind.OPENAI_COMPLETIONS: "/completions"}
_SCHEMES = {"grpc": "http", "grpcs": "https", "http": "http", "https": "https"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What frames the body and names the host is the transport's own.
_OWN_HEADERS = frozenset({"content-length", "content-type", "host", "te", "transfer-encoding", "connection", "accept"})
_EXAMPLE = "Write for example localhost:8001, https://host/v1"


def parse_endpoint(
    url: str,
    kind: str | None = None,
    *,
    model: str | None = None,
    headers: Sequence[str] = (),
    tls: Tls | None = None,
) -> Endpoint:
    """The endpoint at `url`: `host:port` is Triton over gRPC, `grpc(s)://`, `http(s)://` with the kind told or read
    from the path. `headers` are `Name: value`. Raises `ConfigError` with everything that is wrong."""
    tls = tls or Tls()
    violations: list[Violation] = []
    parsed_kind = _collect(violations, partial(_parse_kind, kind))
    parts = _collect(violations, partial(_split_url, url))
    if parts is not None and parsed_kind is None and not violations:
        parsed_kind = _collect(violations, partial(_kind_of, url, parts))
    base_url = None
    if parts is not None and parsed_kind is not None:
        base_url = _collect(violations, partial(_base_url, url, parts, parsed_kind))
        if parsed_kind.is_openai and not model:
            violations.append(
                Violation(
                    "--model", "", "an OpenAI-compatible server needs a model's name", "Give one of its /v1/models"
                )
            )
    parsed_headers = [_collect(violations, partial(_parse_header, text)) for text in headers]
    violations += _tls_problems(tls)
    if violations or parsed_kind is None or base_url is None:
        raise ConfigError(violations)
    return Endpoint(
        kind=parsed_kind,
        url=url,
        base_url=base_url,
        model=model or TRITON_MODEL,
        headers=tuple(header for header in parsed_headers if header is not None),
        tls=tls,
    )


def open_transport(endpoint: Endpoint, timeout_s: float) -> "OpenedTransport":
    """The transport for `endpoint`, to be entered with `async with` in the event loop that runs the requests.

    `timeout_s` limits one whole request.
    """
    # The transports import this module.
    from specdeploy_client.transports.openai import OpenAiTransport
    from specdeploy_client.transports.triton_grpc import GrpcTransport
    from specdeploy_client.transports.triton_http import HttpTransport

    match endpoint.kind:
        case EndpointKind.TRITON_GRPC:
            return GrpcTransport(endpoint, timeout_s)
        case EndpointKind.TRITON_HTTP:
            return HttpTransport(endpoint, timeout_s)
        case EndpointKind.OPENAI_COMPLETIONS | EndpointKind.OPENAI_CHAT:
            return OpenAiTransport(endpoint, timeout_s)


def _parse_kind(kind: str | None) -> EndpointKind | None:
    if kind is None:
        return None
    if kind in _KIND_ALIASES:
        return _KIND_ALIASES[kind]
    if kind not in set(EndpointKind):
        raise RequestError("--endpoint-type", f"{kind!r} is not known", f"Choose one of {_KIND_NAMES}")
    return EndpointKind(kind)


def _split_url(url: str) -> SplitResult:
    """`url` in parts, with a scheme. Nothing of what it says may be lost without a word."""
    text = url if "://" in url else f"grpc://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise RequestError("--url", f"{url!r} is not an address ({error})", _EXAMPLE) from error
    if not url.strip() or url != url.strip() or any(character.isspace() for character in url):
        raise RequestError("--url", f"{url!r} is empty or holds white space", _EXAMPLE)
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        raise RequestError("--url", f"{url!r} has the unknown scheme {parts.scheme}", f"Use one of {known}")
    if not parts.hostname:
        raise RequestError("--url", f"{url!r} names no host", _EXAMPLE)
    if parts.username is not None or parts.password is not None:
        raise RequestError("--url", "it holds a user name or password", "Send it with --header 'Authorization: ...'")
    if parts.query or parts.fragment:
        raise RequestError("--url", f"{url!r} has a query or a fragment", "Leave out what follows ? or #")
    if port == 0 or (parts.scheme in ("grpc", "grpcs") and port is None):
        raise RequestError("--url", f"{url!r} has no port", "Add it; Triton's gRPC port is 8001 unless set otherwise")
    return parts


def _kind_of(url: str, parts: SplitResult) -> EndpointKind:
    """The kind that the address itself tells."""
    if parts.scheme in ("grpc", "grpcs"):
        return EndpointKind.TRITON_GRPC
    path = parts.path.rstrip("/")
    if path.endswith("/chat/completions"):
        return EndpointKind.OPENAI_CHAT
    if path.endswith("/completions"):
        return EndpointKind.OPENAI_COMPLETIONS
    if path.endswith("/v1"):
        return EndpointKind.OPENAI_CHAT
    raise RequestError("--endpoint-type", f"{url!r} does not tell the protocol", f"Give one of {_KIND_NAMES}")


def _base_url(url: str, parts: SplitResult, kind: EndpointKind) -> str:
    """What calls are added to: for OpenAI it ends with the version (`/v1`), for Triton it is the root."""
    is_grpc = parts.scheme in ("grpc", "grpcs")
    if is_grpc and "://" in url and kind is not EndpointKind.TRITON_GRPC:
        raise RequestError("--url", f"{url!r} is a gRPC address, but the endpoint is {kind}", "Use http:// or https://")
    path = parts.path.rstrip("/")
    if kind is EndpointKind.TRITON_GRPC and path:
        raise RequestError("--url", f"{url!r} has a path, which gRPC has not", "Write host:port alone")
    if kind is EndpointKind.TRITON_HTTP and "/v2" in path:
        raise RequestError("--url", f"{url!r} names a page", "Leave out /v2 and what follows; --model names the model")
    if kind.is_openai:
        path = _openai_root(url, path, kind)
    return f"{_SCHEMES[parts.scheme]}://{parts.netloc}{path}"


def _openai_root(url: str, path: str, kind: EndpointKind) -> str:
    for named_kind, call_path in _CALL_PATHS.items():  # the longer path first
        if path.endswith(call_path):
            if named_kind is not kind:
                raise RequestError("--url", f"{url!r} is another call than {kind}", f"Use --endpoint-type {named_kind}")
            return path.removesuffix(call_path)
    return path or "/v1"


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    name, value = name.strip(), value.strip()
    shown = f"{name[:40]}: ..." if colon else f"{text[:40]!r}"  # a value may be a secret
    remedy = "Write it as 'Name: value'"
    if not colon or not _HEADER_NAME.fullmatch(name):
        raise RequestError("--header", f"{shown} is not a header", remedy)
    if not value or not value.isprintable() or not value.isascii():
        raise RequestError("--header", f"the value of {name} is empty or not printable ASCII", remedy)
    if name.lower() in _OWN_HEADERS or name.lower().startswith(("grpc-", ":")):
        raise RequestError("--header", f"{name} is set by the client itself", "Leave it out")
    return name, value


def _tls_problems(tls: Tls) -> list[Violation]:
    """Files that cannot be read, and half a client certificate."""
    problems = []
    named = (("--tls-ca", tls.ca_file), ("--tls-cert", tls.cert_file), ("--tls-key", tls.key_file))
    for option, path in named:
        if path is not None and not path.is_file():
            problems.append(Violation(option, "", f"there is no file {path}", "Give the path of a PEM file"))
    if (tls.cert_file is None) is not (tls.key_file is None):
        problems.append(Violation("--tls-cert", "", "a certificate and its key go together", "Give both or neither"))
    return problems


def _collect(violations: list[Violation], parse: Callable[[], T]) -> T | None:
    """What `parse` gives; None when it refuses, with its reason noted."""
    try:
        return parse()
    except RequestError as error:
        violations.append(Violation(error.field, "", error.reason, error.remedy))
        return None
