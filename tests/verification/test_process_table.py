"""Which processes a service consists of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from environments.verification.process_table import parse_listing

LISTING = """\
self 40
stat 1 (init) S 0 1 1
stat 2 (job) S 1 2 2
stat 3 (a (b) c) S 2 3 3
stat 4 (worker) S 3 3 3
stat 5 (sleep) T 2 5 5
stat 6 (gone) Z 2 6 6
stat 7 (unixd) S 1 7 7
stat 8 (client) S 1 8 8
stat 9 (udpd) S 1 9 9
stat 39 (job) S 1 39 39
stat 40 (sh) S 39 40 40
stat 41 (ls) R 40 40 40
tcp   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
tcp    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 111 1 0
tcp    1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 222 1 0
udp  42: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 333 2 0
unix ffff8880: 00000002 00000000 00010000 0001 01 444 /run/x.sock
unix ffff8881: 00000003 00000000 00000000 0001 03 555
of /proc/3/fd:
fd lrwx------ 1 0 0 64 Jan  1 00:00 3 -> socket:[111]
of /proc/7/fd:
fd lrwx------ 1 0 0 64 Jan  1 00:00 4 -> socket:[444]
of /proc/8/fd:
fd lrwx------ 1 0 0 64 Jan  1 00:00 5 -> socket:[222]
fd lrwx------ 1 0 0 64 Jan  1 00:00 6 -> socket:[555]
of /proc/9/fd:
fd lrwx------ 1 0 0 64 Jan  1 00:00 7 -> socket:[333]
"""


def test_listeners_their_children_and_their_ancestors_serve() -> None:
    table = parse_listing(LISTING)
    assert table.listeners == {3, 7, 9}
    assert table.served_by() == {2, 3, 4, 7, 9}
    assert table.living() == {2, 3, 4, 5, 7, 8, 9}
    assert table.stopped == {5}
    assert table.names[3] == "a (b) c"


def test_what_helps_the_first_process_is_left_alone_where_its_session_is_ours() -> None:
    listing = LISTING.replace("stat 7", "stat 10 (sleep) T 1 1 1\nstat 7")
    assert 10 in parse_listing(listing).living()
    assert parse_listing(listing, first_session_is_ours=True).living() == {2, 3, 4, 5, 7, 8, 9}


@given(st.lists(st.sampled_from(LISTING.splitlines()) | st.text(max_size=30), max_size=30))
def test_no_listing_makes_it_fail(lines: list[str]) -> None:
    table = parse_listing("\n".join(lines))
    assert table.served_by() <= table.living()
    assert table.own not in table.living() and 1 not in table.living()


def test_parents_that_go_round_in_a_circle_end() -> None:
    table = parse_listing(LISTING.replace("(job) S 1 2", "(job) S 4 2"))
    assert 3 in table.served_by()
