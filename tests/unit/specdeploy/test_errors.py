"""Messages name file, key, reason and remedy."""

import inspect

from specdeploy import errors
from specdeploy.errors import ConfigError, RequestError, SpecDeployError, Violation


def test_a_violation_names_all_four() -> None:
    assert str(Violation("a.yaml", "x.y", "it is wrong", "Fix it.")) == "a.yaml: x.y: it is wrong. Fix it."
    assert str(Violation("a.yaml", "", "it is wrong", "Fix it.")) == "a.yaml: it is wrong. Fix it."


def test_a_config_error_lists_every_violation() -> None:
    error = ConfigError([Violation("a", "b", "c", "D."), Violation("e", "f", "g", "H.")])
    assert str(error).splitlines() == ["a: b: c. D.", "e: f: g. H."]


def test_a_request_error_names_the_field() -> None:
    assert str(RequestError("max_tokens", "must be positive")) == "max_tokens: must be positive"
    assert str(RequestError("beam_width", "is refused", "Send 1.")) == "beam_width: is refused. Send 1."


def test_one_base_and_a_drawn_tree() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, Exception)]
    assert all(issubclass(cls, SpecDeployError) for cls in classes)
    assert errors.__doc__ is not None
    assert all(cls.__name__ in errors.__doc__ for cls in classes)
