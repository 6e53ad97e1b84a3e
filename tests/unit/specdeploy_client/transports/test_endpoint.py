"""Addresses as people write them -> endpoints, and what is said of those that cannot be meant."""

import re
from pathlib import Path

import pytest

from specdeploy.errors import ConfigError
from specdeploy_client.transports.endpoint import EndpointKind, Tls, open_transport, parse_endpoint
from specdeploy_client.transports.openai import OpenAiTransport
from specdeploy_client.transports.triton_grpc import GrpcTransport
from specdeploy_client.transports.triton_http import HttpTransport


@pytest.mark.parametrize(
    ("url", "kind", "expected_kind", "base_url"),
    [
        ("localhost:8001", None, "triton-grpc", "http://localhost:8001"),
        ("[::1]:8001", None, "triton-grpc", "http://[::1]:8001"),
        ("grpcs://host:443", None, "triton-grpc", "https://host:443"),
        ("http://host:8001", "triton-grpc", "triton-grpc", "http://host:8001"),
        ("http://host:8000", "triton-http", "triton-http", "http://host:8000"),
        ("host:8000", "triton-http", "triton-http", "http://host:8000"),
        ("https://host/prefix/", "triton-http", "triton-http", "https://host/prefix"),
        ("http://host:8000", "openai-chat", "openai-chat", "http://host:8000/v1"),
        ("http://host:8000/v1", None, "openai-chat", "http://host:8000/v1"),
        ("http://host:8000/v1/", "completions", "openai-completions", "http://host:8000/v1"),
        ("https://host/api/v1/completions", None, "openai-completions", "https://host/api/v1"),
        ("https://host/v1/chat/completions", "chat", "openai-chat", "https://host/v1"),
    ],
)
def test_addresses(url: str, kind: str | None, expected_kind: str, base_url: str) -> None:
    endpoint = parse_endpoint(url, kind, model="m")
    assert (endpoint.kind, endpoint.base_url, endpoint.url) == (EndpointKind(expected_kind), base_url, url)


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("", None, "--url: '' is empty"),
        ("host name:1", None, "white space"),
        ("localhost", None, "--url: 'localhost' has no port"),
        ("localhost:99999", None, "--url: 'localhost:99999' is not an address"),
        ("localhost:port", None, "is not an address"),
        ("ftp://host:1", None, "unknown scheme ftp"),
        ("http://:80", "triton-http", "names no host"),
        ("http://user:secret@host:80", "triton-http", "holds a user name or password"),
        ("http://host:80/?key=1", "triton-http", "query or a fragment"),
        ("http://host:80", None, "--endpoint-type: 'http://host:80' does not tell the protocol"),
        ("http://host:80", "soap", "--endpoint-type: 'soap' is not known"),
        ("grpc://host:80", "openai-chat", "is a gRPC address"),
        ("http://host:80/path", "triton-grpc", "has a path"),
        ("http://host:80/v2/models/llm", "triton-http", "names a page"),
        ("http://host:80/v1/completions", "openai-chat", "another call than openai-chat"),
    ],
)
def test_what_cannot_be_meant_is_said_with_its_option(url: str, kind: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        parse_endpoint(url, kind, model="m")


def test_a_secret_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint("http://user:secret@host:80", "triton-http")
    assert "secret" not in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(
            "http://host:1/v1",
            None,
            headers=("no colon", "Authorization: secret\u00e4", "Content-Length: 3"),
            tls=Tls(ca_file=tmp_path / "ca.pem", cert_file=tmp_path / "c.pem"),
        )
    text = str(caught.value)
    for words in ("--model", "'no colon' is not a header", "the value of Authorization", "Content-Length is set by"):
        assert words in text
    assert "secret" not in text
    assert text.count("there is no file") == 2
    assert "go together" in text
    assert len(caught.value.violations) == 7


def test_headers_keep_their_order_and_lose_white_space() -> None:
    endpoint = parse_endpoint("host:1", headers=("Authorization:  Bearer a:b ", "x-team: one"))
    assert endpoint.headers == (("Authorization", "Bearer a:b"), ("x-team", "one"))


def test_the_model_of_triton_is_llm_unless_said() -> None:
    assert parse_endpoint("host:1").model == "llm"
    assert parse_endpoint("host:1", model="other").model == "other"


@pytest.mark.parametrize(
    ("url", "address"), [("grpcs://h:5", ("h", 5)), ("https://h/v1", ("h", 443)), ("http://h/v1", ("h", 80))]
)
def test_the_address_behind_an_endpoint(url: str, address: tuple[str, int]) -> None:
    assert parse_endpoint(url, model="m").address == address


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("triton-grpc", GrpcTransport),
        ("triton-http", HttpTransport),
        ("openai-chat", OpenAiTransport),
        ("openai-completions", OpenAiTransport),
    ],
)
def test_every_kind_has_its_transport(kind: str, expected: type) -> None:
    transport = open_transport(parse_endpoint("http://host:1", kind, model="m"), 1.0)
    assert type(transport) is expected
    assert (transport.url, transport.endpoint.kind) == ("http://host:1", kind)
