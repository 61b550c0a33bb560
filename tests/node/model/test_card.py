"""The model card: what it says, and what strangers cannot make it say."""

import re
from dataclasses import replace

from node.model.card import CardFacts, model_card
from protocol.ids import RunId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec

INFO = RunInfo(RunSpec(name="winter"), RunId("12" * 16), b"k" * 32)
FACTS = CardFacts(
    round=1205,
    step=1199,
    samples=1000,
    state_digest="00ff" * 4,
    sha256="ab" * 32,
    contributors=[("34" * 16, "Zoë's tower", 600), ("56" * 16, "", 300)],
    contributors_in_all=5,
)


def test_the_card_tells_run_length_people_and_digests_and_leaves_the_licence_open() -> None:
    card = model_card(INFO, FACTS)
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "license" not in card.partition("\n---\n")[0], "the operator chooses it"
    for fact in (INFO.run_id, "round 1205, 1,200 steps", "128,000", "00ff" * 4, "ab" * 32):
        assert fact in card
    assert "- Zoë's tower (34343434): 76,800 tokens" in card
    assert "- without a name (56565656): 38,400 tokens" in card
    assert "- and 3 more" in card


def test_the_validation_loss_is_there_when_it_was_measured() -> None:
    assert "validation loss" not in model_card(INFO, FACTS)
    measured = replace(FACTS, validation_loss=2.34567, validation_round=1205)
    assert "| validation loss | 2.3457 nats per token |" in model_card(INFO, measured)
    earlier = replace(measured, validation_round=1199)
    expected = "| validation loss after round 1199 | 2.3457 nats per token |"
    assert expected in model_card(INFO, earlier)


def test_a_name_cannot_bring_links_pictures_or_tables_into_the_card() -> None:
    name = "![x](http://a.b/c.png)|<script>`#"
    card = model_card(INFO, replace(FACTS, contributors=[("34" * 16, name, 1)]))
    line = next(line for line in card.splitlines() if "34343434" in line)
    line = line.rpartition(" (")[0].removeprefix("- ")
    assert re.sub(r"\\.", "", line) == "xhttpabcpngscript", "every mark of Markdown is escaped"
