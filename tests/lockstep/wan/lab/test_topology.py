"""The laboratory on paper: names, addresses, and the commands that follow from them."""

import pytest

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.topology import LabHome, Plan, RegionDistance, address_commands
from protocol.errors import SettingsError

LINK = HomeLink(LinkDirection(1_000_000, 0.01), LinkDirection(2_000_000, 0.01))
STREET = Plan(
    (LabHome("node-0", LINK), LabHome("node-1", LINK, nat="masquerade"), LabHome("coordinator"))
)
OCEAN = Plan(
    (LabHome("node-0", LINK, region="london"), LabHome("node-1", region="virginia")),
    (RegionDistance("virginia", "london", 0.038),),
)


def lines(plan: Plan) -> list[str]:
    return [" ".join(command) for command in plan.commands("ab12cd")]


def test_every_namespace_carries_the_prefix_and_the_laboratory() -> None:
    assert STREET.namespaces("ab12cd") == [
        "lockstep-ab12cd-internet",
        "lockstep-ab12cd-node-0",
        "lockstep-ab12cd-node-1",
        "lockstep-ab12cd-coordinator",
        "lockstep-ab12cd-node-1-nat",
    ]


def test_only_the_internet_and_routers_forward() -> None:
    forwarding = [name for name, forwards in STREET.forwarding("ab12cd") if forwards]
    assert forwarding == ["lockstep-ab12cd-internet", "lockstep-ab12cd-node-1-nat"]


def test_no_two_public_addresses_are_equal_and_none_is_private() -> None:
    plan = Plan(tuple(LabHome(f"node-{number}") for number in range(256)))
    placed = plan.placed("x").values()
    addresses = [place.public_address(moved=moved) for place in placed for moved in (False, True)]
    assert len(set(addresses) | {place.gateway for place in placed}) == 3 * 256
    assert all(address.startswith("11.") for address in addresses)


def test_a_home_behind_nat_has_a_private_address_and_its_router_the_public_one() -> None:
    place = STREET.placed("x")["node-1"]
    assert (place.address, place.public_address()) == ("192.168.1.2", "11.0.0.10")
    assert (place.edge, place.edge_interface) == ("lockstep-x-node-1-nat", "wan")
    assert STREET.routers("x") == [place.edge]


def test_a_home_without_nat_is_its_own_edge() -> None:
    place = STREET.placed("x")["node-0"]
    assert place.edge == place.namespace
    assert place.address == place.public_address() == "11.0.0.2"


def test_a_line_is_shaped_where_it_enters_the_house() -> None:
    assert [(shaped.namespace, shaped.interface) for shaped in STREET.shaped("x")] == [
        ("lockstep-x-node-0", "eth0"),
        ("lockstep-x-node-1-nat", "wan"),
    ]


def test_every_interface_name_fits_the_kernel() -> None:
    for command in lines(STREET) + lines(OCEAN):
        parts = command.split()
        for keyword in ("dev", "name"):
            if keyword in parts:
                assert len(parts[parts.index(keyword) + 1]) <= 15


def test_regions_are_namespaces_of_their_own_with_a_long_line_between() -> None:
    assert OCEAN.namespaces("x")[:2] == [
        "lockstep-x-internet-london",
        "lockstep-x-internet-virginia",
    ]
    distances = {
        (shaped.namespace, shaped.interface): shaped.link for shaped in OCEAN.shaped("x")[1:]
    }
    assert distances == {
        ("lockstep-x-internet-virginia", "r-london"): HomeLink(up=LinkDirection(delay_s=0.038)),
        ("lockstep-x-internet-london", "r-virginia"): HomeLink(up=LinkDirection(delay_s=0.038)),
    }


def test_a_region_knows_the_way_to_the_homes_of_the_other() -> None:
    routes = [line for line in lines(OCEAN) if "route add 11." in line]
    assert routes == [
        "ip -n lockstep-ab12cd-internet-virginia route add 11.0.0.0/29 via 11.255.0.2",
        "ip -n lockstep-ab12cd-internet-london route add 11.0.0.8/29 via 11.255.0.1",
    ]


def test_a_home_moves_within_its_subnet_and_back() -> None:
    place = STREET.placed("x")["node-0"]
    there = [" ".join(command) for command in address_commands(place, moved=True)]
    back = [" ".join(command) for command in address_commands(place, moved=False)]
    assert there[:2] == [
        "ip -n lockstep-x-node-0 addr del 11.0.0.2/29 dev eth0",
        "ip -n lockstep-x-node-0 addr add 11.0.0.3/29 dev eth0",
    ]
    assert "addr del 11.0.0.3/29" in back[0]


@pytest.mark.parametrize(
    "name", ["", "Node", "-node", "node_1", "a-rather-long-name", "internet", "home-nat", "a b"]
)
def test_a_name_that_no_interface_can_carry_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="name of a computer"):
        Plan((LabHome(name),))


def test_two_homes_of_one_name_are_refused() -> None:
    with pytest.raises(SettingsError, match="called node-0"):
        Plan((LabHome("node-0"), LabHome("node-0")))


def test_an_empty_laboratory_is_refused() -> None:
    with pytest.raises(SettingsError, match="expected 1 to 256"):
        Plan(())


def test_regions_without_a_distance_are_refused() -> None:
    with pytest.raises(SettingsError, match="between london and tokyo"):
        Plan((LabHome("a", region="london"), LabHome("b", region="tokyo")))
