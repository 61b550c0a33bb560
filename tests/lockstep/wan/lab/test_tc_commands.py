"""The command lines of each mechanism."""

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.tc_commands import delay_changes, delay_commands, netem_commands, tap_name

LINK = HomeLink(
    LinkDirection(20_000_000, 0.0125, 0.002, 0.001),
    LinkDirection(220_000_000, 0.0125, 0.002, 0.001),
)
ALL_IPV4 = "protocol ip prio 1 u32 match u32 0 0 flowid :1 action mirred egress redirect dev"


def texts(commands: list[tuple[str, ...]]) -> list[str]:
    return [" ".join(command) for command in commands]


def test_netem_shapes_egress_itself_and_ingress_through_an_ifb() -> None:
    delay = "delay 12500us 2000us loss 0.1%"
    assert texts(netem_commands("eth0", LINK)) == [
        "ip link set eth0 gso_max_segs 1",
        f"tc qdisc add dev eth0 root netem limit 3304 {delay} rate 20000000bit",
        "ip link add down-eth0 type ifb",
        "ip link set down-eth0 up",
        "tc qdisc add dev eth0 clsact",
        f"tc filter add dev eth0 ingress {ALL_IPV4} down-eth0",
        f"tc qdisc add dev down-eth0 root netem limit 26339 {delay} rate 220000000bit",
    ]


def test_netem_changes_figures_without_building_again() -> None:
    assert [line.split()[:5] for line in texts(netem_commands("eth0", LINK, "change"))] == [
        ["tc", "qdisc", "change", "dev", "eth0"],
        ["tc", "qdisc", "change", "dev", "down-eth0"],
    ]


def test_netem_s_queue_holds_more_than_its_default_where_the_link_does() -> None:
    far = HomeLink(up=LinkDirection(rate_bit_s=1_000_000_000, delay_s=0.1))
    (line,) = (line for line in texts(netem_commands("eth0", far)) if "netem" in line)
    assert int(line.split()[line.split().index("limit") + 1]) > 1_000_000_000 / 8 * 0.1 / 1514


def test_the_delay_gets_a_bucket_on_each_tap_with_a_queue_of_rate_times_delay() -> None:
    lines = texts(delay_commands("eth0", LINK, "02:00:00:00:00:01", 1500))
    assert "tc qdisc add dev up-eth0 root tbf rate 20000000bit burst 3028 limit 312500" in lines
    assert (
        "tc qdisc add dev down-eth0 root tbf rate 220000000bit burst 27500 limit 3437500" in lines
    )
    assert "ip link set down-eth0 address 02:00:00:00:00:01" in lines
    assert any(
        "dev eth0 egress" in line and line.endswith("redirect dev up-eth0") for line in lines
    )
    assert any(
        "dev eth0 ingress" in line and line.endswith("redirect dev down-eth0") for line in lines
    )


def test_a_direction_without_a_link_is_not_shaped() -> None:
    distance = HomeLink(up=LinkDirection(delay_s=0.038))
    for lines in (
        texts(delay_commands("eth0", distance, "x", 1500)),
        texts(netem_commands("eth0", distance)),
        texts(delay_changes("eth0", distance)),
    ):
        assert not any("ingress" in line or "down-" in line for line in lines)
        assert not any("tbf" in line or "rate" in line for line in lines)


def test_a_tap_s_name_fits_the_kernel() -> None:
    assert tap_name("down", "eth0") == "down-eth0"
    assert len(tap_name("down", "wlp0s20f3-long")) == 15
