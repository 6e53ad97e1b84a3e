"""What a request says of itself."""

from specdeploy_client.workloads.base import WorkRequest, derive_rng


def test_what_follows_and_what_is_known() -> None:
    first = WorkRequest("a/0", "chat", "one")
    assert not first.follows_previous
    assert first.known_turns == ("one",)
    recorded = WorkRequest("a/1", "chat", "two", turn=1, history=("one", "1"))
    assert recorded.follows_previous
    assert recorded.known_turns == ("one", "1", "two")
    own = WorkRequest("a/1", "chat", "two", turn=1, history=None)
    assert own.known_turns == ("two",)
    timed = WorkRequest("a/1", "chat", "two", turn=1, arrival_ns=0)
    assert not timed.follows_previous
    assert WorkRequest("b", "chat", "<s>raw", is_rendered=True).known_turns == ()


def test_generators_depend_on_every_part() -> None:
    draws = {derive_rng(*parts).integers(1 << 40) for parts in ((0, "a"), (1, "a"), (0, "b"), ("0", "a"))}
    assert len(draws) == 3
