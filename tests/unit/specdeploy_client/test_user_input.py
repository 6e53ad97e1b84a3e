"""What is wrong with a file or an option is a `ConfigError`, whoever finds it."""

import pytest

from specdeploy.errors import ClientError, ConfigError
from specdeploy_client.user_input import as_user_input


def test_the_message_stays_and_the_kind_changes() -> None:
    with pytest.raises(ConfigError) as refused, as_user_input():
        raise ClientError("tokenizer x: there is no such file. Name one")
    assert str(refused.value) == "tokenizer x: there is no such file. Name one"
    assert [violation.reason for violation in refused.value.violations] == [str(refused.value)]


def test_what_goes_well_passes() -> None:
    with as_user_input():
        seen = 1
    assert seen == 1
