from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import ConfigError
from environments.tools.web.guard import Forbidden, Guard

NAMES = {
    "public.example": ["93.184.216.34"],
    "inside.example": ["10.1.2.3"],
    "both.example": ["10.1.2.3", "93.184.216.34"],
    "shop.test": ["127.0.0.1"],
    "2130706433": ["127.0.0.1"],
    "0x7f.1": ["127.0.0.1"],
}


async def resolver(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    if name not in NAMES:
        raise OSError("Name or service not known")
    return [ipaddress.ip_address(text) for text in NAMES[name]]


def judge(host: str, port: int = 80, allowed: Sequence[str] = ()) -> list[str]:
    return [str(a) for a in asyncio.run(Guard(allowed, resolver=resolver).addresses(host, port))]


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.9.9.9", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "0.0.0.0"),
        *(
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "[::1]",
            "::",
            "fe80::1%eth0",
            "fd00::1",
            "[ff02::1]",
        ),
        *("::ffff:127.0.0.1", "[::ffff:7f00:1]", "64:ff9b::7f00:1", "2002:7f00:1::", "inside.example"),
        *("2130706433", "0x7f.1", "shop.test"),
    ],
)
def test_private_addresses_are_out_of_reach(host: str) -> None:
    with pytest.raises(Forbidden, match="private network"):
        judge(host)


def test_the_internet_is_within_reach_and_only_its_addresses_are_given() -> None:
    assert judge("public.example") == ["93.184.216.34"]
    assert judge("both.example", 8443) == ["93.184.216.34"]
    assert judge("8.8.8.8", 53) == ["8.8.8.8"]
    assert judge("[2606:4700::1111]") == ["2606:4700::1111"]


def test_a_private_host_that_is_named_is_within_reach_on_its_port() -> None:
    assert judge("shop.test", 8000, ["shop.test:8000"]) == ["127.0.0.1"]
    assert judge("127.0.0.1", 8000, ["127.0.0.1:8000"]) == ["127.0.0.1"]
    assert judge("shop.test", 8000, ["127.0.0.0/8:*"]) == ["127.0.0.1"]
    assert judge("::ffff:127.0.0.1", 80, ["127.0.0.1"]) == ["127.0.0.1"]
    for host, port, allowed in [
        ("shop.test", 8001, "shop.test:8000"),
        ("127.0.0.1", 8000, "shop.test:8000"),  # the name, not the address
        ("inside.example", 80, "shop.test"),
    ]:
        with pytest.raises(Forbidden):
            judge(host, port, [allowed])


def test_what_has_no_address_is_said() -> None:
    with pytest.raises(OSError, match="not known"):
        judge("nowhere.example")
    with pytest.raises(ConfigError, match="no host of an allow-list"):
        Guard(["http://x/"])


@given(st.integers(0, 2**32 - 1))
def test_whatever_is_let_pass_is_public(number: int) -> None:
    address = ipaddress.IPv4Address(number)
    try:
        assert judge(str(address)) == [str(address)]
    except Forbidden:
        assert not address.is_global or address.is_multicast or address.is_reserved
    else:
        assert address.is_global
        assert not address.is_multicast
