"""Certificates that the tests of this folder share."""

import pytest

from helpers.scripted_server import Certificates, make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """One authority, one server, one client."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))
