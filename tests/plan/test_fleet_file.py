"""A fleet's file, and which host runs which block."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from benchlib.plan.design import randomised_blocks
from benchlib.plan.fleet import Fleet, pinned

ENCRYPTED = {"scheduler": "tls://10.0.0.1:8786", "tls": "certificates"}


def test_hosts_have_roles_and_are_servers_unless_the_file_says_otherwise():
    hosts = {"db1": {}, "gen1": {"roles": ["load"], "address": "10.0.0.9"}}
    fleet = Fleet.model_validate({**ENCRYPTED, "hosts": hosts})
    assert [fleet.with_role(role) for role in ("server", "load")] == [["db1"], ["gen1"]]


def test_a_cluster_without_encryption_is_one_that_the_file_calls_insecure():
    assert Fleet(scheduler="tcp://10.0.0.1:8786", insecure=True).tls is None


def test_whole_groups_of_balanced_orders_go_to_a_host_or_blocks_in_turn_where_it_is_looked_at_early():
    assert pinned(9, 3, ["a", "b"]) == dict(enumerate("aaabbbaba", 1))
    assert pinned(12, 4, ["a", "b", "c"]) == dict(enumerate("aaaabbbbcccc", 1))
    assert pinned(9, 3, ["a", "b", "c"], looks=(3, 5, 7, 9)) == dict(enumerate("abcabcabc", 1))


@given(st.integers(1, 60), st.integers(2, 7), st.integers(1, 9))
def test_every_block_has_one_host_and_none_has_two_more_than_another(blocks, levels, hosts):
    pins = pinned(blocks, levels, [f"h{n}" for n in range(hosts)])
    assert list(pins) == list(range(1, blocks + 1))
    counts = Counter(pins.values())
    assert max(counts.values()) - (min(counts.values()) if len(counts) == hosts else 0) <= 1


def test_inside_a_group_each_level_has_each_position_once_on_its_host():
    pins = pinned(12, 4, ["a", "b", "c"])
    trials = randomised_blocks(list("wxyz"), 12, seed=3)
    places = Counter((pins[t.block], t.level, t.position) for t in trials)
    assert set(places.values()) == {1}
