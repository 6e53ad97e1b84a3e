"""Acceptance of a block, by hand."""

from collections.abc import Callable

import pytest
import torch

from specdeploy.runtime.verify import residual_probs, verify_chain, verify_sampled, verify_tree


@pytest.mark.parametrize(
    ("draft", "target", "output", "num_accepted"),
    [
        ([], [7], (7,), 0),
        ([1, 2, 3], [1, 2, 3, 4], (1, 2, 3, 4), 3),
        ([1, 2, 3], [1, 9, 3, 4], (1, 9), 1),
        ([1, 2, 3], [9, 2, 3, 4], (9,), 0),
        ([1, 1, 1], [1, 1, 2, 8], (1, 1, 2), 2),
    ],
)
def test_the_longest_agreeing_prefix_and_one_more(
    draft: list[int], target: list[int], output: tuple[int, ...], num_accepted: int
) -> None:
    result = verify_chain(draft, target.__getitem__)
    assert (result.token_ids, result.num_accepted) == (output, num_accepted)
    assert result.accepted_nodes == tuple(range(num_accepted))


def test_nothing_behind_a_rejection_is_asked_for() -> None:
    asked: list[int] = []

    def choose(index: int) -> int:
        asked.append(index)
        return 5

    verify_chain([5, 6, 5, 5], choose)
    assert asked == [0, 1]


#        text
#       /    \
#      5      6
#     / \     |
#    7   8    7
#        |
#        9
TREE = ([5, 6, 7, 8, 7, 9], [-1, -1, 0, 0, 1, 3])


@pytest.mark.parametrize(
    ("target", "output", "nodes"),
    [
        ({-1: 4}, (4,), ()),
        ({-1: 7}, (7,), ()),  # 7 is there, but not below the text
        ({-1: 6, 1: 9}, (6, 9), (1,)),
        ({-1: 6, 1: 7, 4: 9}, (6, 7, 9), (1, 4)),
        ({-1: 5, 0: 7, 2: 1}, (5, 7, 1), (0, 2)),
        ({-1: 5, 0: 8, 3: 9, 5: 2}, (5, 8, 9, 2), (0, 3, 5)),
    ],
)
def test_a_tree_is_walked_down_while_the_targets_token_is_a_child(
    target: dict[int, int], output: tuple[int, ...], nodes: tuple[int, ...]
) -> None:
    result = verify_tree(*TREE, target.__getitem__)  # a node that is not on the path would be a KeyError
    assert (result.token_ids, result.accepted_nodes, result.num_accepted) == (output, nodes, len(nodes))


def test_a_tree_of_one_path_is_a_chain() -> None:
    chain = verify_chain([1, 2, 3], [1, 2, 9, 4].__getitem__)
    tree = verify_tree([1, 2, 3], [-1, 0, 1], lambda node: [1, 2, 9, 4][node + 1])
    assert chain == tree


class Ends:
    """Ends the text with its n-th token."""

    def __init__(self, number: int) -> None:
        self.told: list[int] = []
        self._number = number

    def __call__(self, token: int) -> bool:
        self.told.append(token)
        return len(self.told) >= self._number


def only(number: int, value: int) -> Callable[[int], int]:
    """The value, but never for what lies behind the end."""

    def choose(index: int) -> int:
        assert index < number, "asked about text behind the end"
        return value

    return choose


@pytest.mark.parametrize("draft_len", [3, 5])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_a_block_stops_with_the_token_that_ends_the_text(number: int, draft_len: int) -> None:
    draft = [5] * draft_len
    ends = Ends(number)
    chain = verify_chain(draft, only(number, 5), ends)
    assert chain.token_ids == (5,) * number == tuple(ends.told)
    assert chain.num_accepted == min(number, draft_len)
    ends = Ends(number)
    tree = verify_tree(draft, range(-1, draft_len - 1), lambda node: only(number, 5)(node + 1), ends)
    assert tree == chain
    assert tuple(ends.told) == tree.token_ids
    ends = Ends(number)
    point_masses = torch.nn.functional.one_hot(torch.tensor(draft), 8).float()
    sampled = verify_sampled(
        draft, point_masses, lambda index: point_masses[only(number, 0)(index)], lambda stream, index: 0.9, ends
    )
    assert sampled == chain
    assert tuple(ends.told) == sampled.token_ids


DRAFT_PROBS = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
TARGET_PROBS = torch.tensor([[0.25, 0.5, 0.25, 0.0], [0.4, 0.3, 0.2, 0.1], [0.0, 0.0, 1.0, 0.0]])


def sampled(draft: list[int], accept: float, target: float) -> tuple[tuple[int, ...], int]:
    result = verify_sampled(
        draft,
        DRAFT_PROBS,
        TARGET_PROBS.__getitem__,
        lambda stream, index: {"accept": accept, "target": target}[stream],
    )
    return result.token_ids, result.num_accepted


def test_a_drawn_token_is_accepted_with_the_ratio_of_the_probabilities() -> None:
    assert sampled([0, 3], 0.49, 0.0)[0][0] == 0  # 0.25 / 0.5
    assert sampled([0, 3], 0.51, 0.0) == ((2,), 0)  # the target has more than the draft of token 2 alone
    assert sampled([1, 3], 0.99, 0.0)[0][0] == 1  # as likely for both: always accepted
    assert sampled([1, 3], 0.24, 0.0) == ((1, 3, 2), 2)  # 0.1 / 0.4, then the bonus
    assert sampled([1, 3], 0.26, 0.74) == ((1, 0), 1)  # residual 0.3, 0.1 of tokens 0, 1
    assert sampled([1, 3], 0.26, 0.76) == ((1, 1), 1)


@pytest.mark.parametrize("accept", [0.0, 0.5, 1 - 2**-53])
def test_what_the_target_cannot_choose_is_always_rejected(accept: float) -> None:
    draft_probs = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    result = verify_sampled(
        [3], draft_probs, TARGET_PROBS.__getitem__, lambda stream, index: accept if stream == "accept" else 0.3
    )
    assert result.num_accepted == 0
    assert result.token_ids == (1,)  # target's own distribution: nothing of it is the draft's


def test_vocabularies_may_end_at_different_places() -> None:
    longer = torch.tensor([[0.2, 0.2, 0.1, 0.1, 0.4]])
    result = verify_sampled([4], longer, TARGET_PROBS.__getitem__, lambda stream, index: 0.0)
    assert (result.token_ids, result.num_accepted) == ((0,), 0)
    shorter = torch.tensor([[0.5, 0.5]])
    result = verify_sampled([0], shorter, TARGET_PROBS.__getitem__, lambda stream, index: 0.6)
    assert (result.token_ids, result.num_accepted) == ((2,), 0)


def test_a_residual_of_nothing_is_the_target_itself() -> None:
    """Rounding can reject a token although both distributions are equal."""
    probs = torch.tensor([0.5, 0.5])
    assert residual_probs(probs, probs) is probs
    assert residual_probs(probs, torch.tensor([0.75, 0.25])).tolist() == [0.0, 0.25]


def test_no_draft_is_the_targets_own_draw() -> None:
    result = verify_sampled([], torch.empty(0, 4), TARGET_PROBS.__getitem__, lambda stream, index: 0.5)
    assert (result.token_ids, result.num_accepted) == ((1,), 0)
