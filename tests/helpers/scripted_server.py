"""A TCP server that answers with scripted bytes, and certificates for those that speak TLS."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.mock_llm_server import ServerTls

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def scripted_server(script: Script) -> AsyncIterator[str]:
    """`script` runs for every connection, which is closed after it. Yields host:port."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await script(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def replying(*pieces: bytes) -> Script:
    """Waits for a request, then sends `pieces`."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.005)

    return script


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of an authority, of a server called localhost and of a client."""

    ca_file: Path
    server: ServerTls
    client_cert_file: Path
    client_key_file: Path


def make_certificates(folder: Path) -> Certificates:
    """Fresh ones, by the `openssl` program; skips the test where there is none."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl program")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-subj", "/CN=test authority", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("localhost", "client"):
        (folder / f"{name}.ext").write_text(f"subjectAltName=DNS:{name}\n")
        openssl("req", *key[:-2], "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
    return Certificates(
        ca_file=folder / "ca.pem",
        server=ServerTls(folder / "localhost.pem", folder / "localhost.key"),
        client_cert_file=folder / "client.pem",
        client_key_file=folder / "client.key",
    )
