"""The block pool: no block serves two that do not share it, and a remembered block is found until it is reused."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.block_pool import BlockPool, block_hash


def test_takes_all_or_nothing():
    pool = BlockPool(4, 16)
    assert pool.allocate(5) is None
    assert pool.num_free == 4
    assert sorted(pool.allocate(4) or []) == [0, 1, 2, 3]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_a_released_block_keeps_its_content_until_it_is_needed():
    pool = BlockPool(2, 4)
    name = block_hash(b"", [1, 2, 3, 4])
    (block,) = pool.allocate(1) or []
    pool.remember(block, name)
    pool.release([block])
    assert pool.find([name]) == [block]
    first, second = pool.allocate(2) or []
    assert {first, second} == {0, 1}
    assert pool.find([name]) == []


def test_blocks_without_content_are_reused_before_those_with():
    pool = BlockPool(3, 4)
    a, b, c = pool.allocate(3) or []
    pool.remember(a, b"a")
    pool.remember(b, b"b")
    pool.release([a, b, c])
    assert pool.allocate(1) == [c]
    assert pool.allocate(1) == [b], "the end of a sequence goes before its start"


def test_a_shared_block_is_free_only_when_its_last_user_lets_go():
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1) or []
    pool.remember(block, b"n")
    pool.share(pool.find([b"n"]))
    pool.release([block])
    assert pool.num_free == 1
    pool.check_books([[block]])
    pool.release([block])
    assert pool.num_free == 2


def test_the_same_tokens_after_other_tokens_have_another_name():
    assert block_hash(b"", [1, 2]) != block_hash(block_hash(b"", [0]), [1, 2])


@given(st.data())
def test_books_balance_whatever_happens(data):
    """Random allocations, shares, releases and memories: users, free list and index always agree."""
    pool = BlockPool(8, 4)
    held: list[list[int]] = []
    names = [bytes([n]) for n in range(4)]
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["allocate", "share", "release", "remember", "forget"])):
            case "allocate":
                blocks = pool.allocate(data.draw(st.integers(0, 5)))
                if blocks is not None:
                    held.append(blocks)
            case "share":
                found = pool.find([data.draw(st.sampled_from(names))])
                pool.share(found)
                held.append(found)
            case "release" if held:
                pool.release(held.pop(data.draw(st.integers(0, len(held) - 1))))
            case "remember" if held and held[-1]:
                pool.remember(held[-1][0], data.draw(st.sampled_from(names)))
            case "forget" if held:
                pool.forget(held[-1])
        pool.check_books(held)


def test_needs_no_torch():
    import subprocess

    code = "import sys, appliance.engine.scheduler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
