"""The screens that the guides show, made by the code that prints them.

A fence of the language `text` is a screen; the makers of a page stand here in its order. What a
machine measures is given here as it was once seen; sizes, estimates and words are the code's.
`tests/processes/test_guides.py` compares the demo's with a demo.
"""

import re
from pathlib import Path

from rich.console import Console, RenderableType

from coordinator.machine.machine import RunMachine
from coordinator.machine.rules.head_state import held_by_nobody
from coordinator.machine.state.member import FormerMember, Member
from docs.generate.tables import ROOT
from lockstep.audit.findings import Findings, in_words
from lockstep.cluster.demo import demo_spec, summary_table
from lockstep.cluster.settings import DemoOptions
from lockstep.commands.status import render as coordinator_tables
from lockstep.presets import run_of
from lockstep.volunteer.consent import QUESTION, terms
from lockstep.volunteer.measured import FirstLook, bell_lines
from lockstep.volunteer.needs import SEEN, needs_text
from lockstep.volunteer.screen import render
from node.rehearsal import Rehearsal
from node.settings import NodeSettings
from protocol.codec.evidence import CHANCE, CopySource, Evidence, Finding, WorkAudit, words
from protocol.ids import Digest, PeerId, RunId
from protocol.planner.needs import needs_of
from protocol.planner.parameters import size_of
from protocol.planner.payload_bytes import payload_bytes
from protocol.run_info import RunInfo
from protocol.sums.signed import SumSigned, WrongSum
from protocol.sums.signed import words as wrong_sum_words

GUIDES = ROOT / "docs" / "guide"

RUN_ID = RunId("5e042de1" + 24 * "0")

OWN = PeerId("b00a2c0c" + 24 * "0")

SCREEN = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def screens(page: str) -> list[str]:
    """The screens of a guide, in their order."""
    return [make() for make in MAKERS.get(page, ())]


def with_screens(page: str, text: str) -> str:
    """The text of a guide with its screens made anew. `ValueError` where it has another number."""
    made, found = screens(page), SCREEN.findall(text)
    if len(made) != len(found):
        raise ValueError(f"{page}: expected {len(made)} fences of `text`, got {len(found)}")
    rest = iter(made)
    return SCREEN.sub(lambda _: f"```text\n{next(rest)}```", text)


def consent() -> str:
    """The first join of a default run, on two cores without a GPU."""
    info = RunInfo(run_of("local_steps"), RUN_ID, bytes(32))
    seen = FirstLook(Rehearsal(1, 1, 0.31, 0.67, "4 are hardly quicker", pass_bytes=19_000_000))
    waiting = {"phase": "waiting", "reason": "waiting for members: 0 of 2 are ready"}
    lines = [
        needs_text(needs_of(info.spec, size_of(info.spec.model))),
        SEEN,
        *terms(info, "x86_64 CPU, 2 of 2 threads", 0, members=8),
        *bell_lines(seen, NodeSettings("example.org", Path("run")), info.spec, waiting),
        "your limits: none",
        QUESTION.rstrip(),
    ]
    return "\n".join(lines) + "\n"


def own_table() -> str:
    """The table of a node at work."""
    return printed(render(own_status(), hint=""))


def own_status() -> dict[str, object]:
    """The status of a node at work."""
    return {
        "run": {"run_id": RUN_ID, "name": "first-run", "steps": 2000, "seconds_left": 20_900},
        "name": "attic",
        "peer_id": OWN,
        "hardware": "x86_64 CPU, 2 of 2 threads",
        "standing": {"state": "counted", "reason": ""},
        "phase": "trains round 102",
        "bell_in_seconds": 3,
        "round": 101,
        "loss": 2.024,
        "validation": {"loss": 2.0911, "round": 99},
        "rounds": {"trained": 16, "counted": 14},
        "tokens": 33_024,
        "totals": {"run": work(24, 21), "all": work(82, 76), "runs": 2},
        "share": 16,
        "part": 0.11,
        "key": {"rounds": 21, "needed": 50, "counts_after": 130},
        "page": f"http://run.example:8080/?me={OWN}",
        "traffic": {"payload_up_bytes": 637_000, "catch_up_down_bytes": 4_050_000},
        "members": 2,
        "links": {"open": [{}]},
        "session": "connected",
    }


def work(trained: int, counted: int) -> dict[str, int]:
    """Rounds over all sessions."""
    return {"trained": trained, "counted": counted}


def demo() -> str:
    """The end of a demo of two nodes and ten rounds, on two cores."""
    settings = DemoOptions(Path("out/demo"), nodes=2, rounds=10, seed=1, json_path="-")
    spec = demo_spec(settings)
    size = size_of(spec.model)
    payload, dense = payload_bytes(spec.algorithm, size), 2 * size.parameters
    document = {
        "run_id": RUN_ID,
        "parameters": size.parameters,
        "tokens": 122_880,
        "nodes": settings.nodes,
        "rounds": {"committed": settings.rounds, "skipped": 0},
        "seconds": 75.4,
        "loss": {
            "first": 3.953,
            "last": 2.665,
            "validation_first": 5.375,
            "validation_last": 2.731,
        },
        "digests": {"agreed": True, "rounds_checked": 10, "last": "820645ef3d2d897f"},
        "consensus": None,
        "traffic": {
            "payload_bytes": payload,
            "bits_per_value": 8 * payload / (size.chunks * spec.algorithm.top_k),
            "payload_up_bytes_per_node_round": payload,
            "payload_down_bytes_per_node_round": payload,
            "other_up_bytes": 4_280_000,
            "other_down_bytes": 176_000,
            "dense_bf16_bytes": dense,
            "times_less_than_dense": dense / payload,
        },
    }
    return printed(summary_table(document))


def verified() -> str:
    """An audit of a demo's log and checkpoint."""
    findings = Findings(RUN_ID, True, 10, 10, 10, round=9, state_digest="820645ef3d2d897f")
    findings.checkpoint = "out/demo/checkpoint equals the state of the log at round 9"
    return in_words(findings) + "\n"


def verified_from_a_snapshot() -> str:
    """An audit of the newest rounds of a log."""
    findings = Findings(RUN_ID, True, 1900, 100, 100, began_after=1805, round=1905)
    findings.state_digest = "d10fe5b1f607e98b"
    return in_words(findings) + "\n"


def other_work() -> str:
    """Evidence against authors whose work was less, or none."""
    rough = ((120, 5_000, 8_000), (131, 5_100, 9_900), (140, 5_200, 9_000))
    return accused("less work", *rough) + accused("other work", (0, 200, CHANCE))


def copied() -> str:
    """Evidence against an author that sends what another has sent."""
    source = CopySource(PeerId("4f1c09aa" + 24 * "0"), 811, Digest(bytes(32)))
    rounds = ((812, 10_000, 100), (813, 10_000, 100), (815, 10_000, 100))
    return accused("copied work", *rounds, source=source)


def accused(
    finding: Finding, *audits: tuple[int, int, int], source: CopySource | None = None
) -> str:
    """The words of evidence; an audit is its round, what agreed and what was expected."""
    found = tuple(
        WorkAudit(round, Digest(bytes(32)), agreed, expected, source)
        for round, agreed, expected in audits
    )
    return words(Evidence(RUN_ID, OWN, finding, found)) + "\n"


def wrong_sum() -> str:
    """The words of an auditor that has added again."""
    added = Digest(bytes.fromhex("90ab41ffe2c80d36").ljust(32, b"\0"))
    digest = Digest(bytes.fromhex("5b1f0c9a77d2e410").ljust(32, b"\0"))
    signed = SumSigned(3, digest, bytes(32), bytes(64))
    return wrong_sum_words(WrongSum(RUN_ID, 12, signed, added)) + "\n"


def every_copy_lost() -> str:
    """A coordinator's reason where nobody holds the newest state."""
    rounds = RunMachine(run_of("local_steps"), RUN_ID)
    state = rounds.state
    state.head_round, state.unready_since_ms = 57, 1
    waits = Member(OWN, (), "attic", "", "", "catching up", joined_ms=1, lease_until_ms=0)
    rounds.members.roster[OWN] = waits
    state.members.former[PeerId("4f1c09aa" + 24 * "0")] = FormerMember("cellar", 57, 1)
    reason = held_by_nobody(rounds, 300_000)
    (table,) = coordinator_tables({"name": "first-run", "run_id": RUN_ID, "reason": reason})
    because = printed(table).partition("because")
    return "because" + because[2].partition("steps ")[0]


def printed(part: RenderableType) -> str:
    """What a terminal shows, without spaces at the ends of lines."""
    console = Console(width=80, force_terminal=False, highlight=False)
    with console.capture() as capture:
        console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


MAKERS = {
    "audit.md": (verified, verified_from_a_snapshot, other_work, copied, wrong_sum),
    "join.md": (consent, own_table),
    "operate.md": (every_copy_lost,),
    "simulate.md": (demo,),
}
"""Screens by guide."""
