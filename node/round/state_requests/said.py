"""What a node has said of the states that it was asked about, for a session that was down: a word
that is lost with it would have the coordinator wait, and give the checkpoint up.
"""

from collections.abc import Callable

from protocol import wire_pb2 as wire

WORDS_MAX = 4
"""Words about one state that are kept: its digests, an address, a failure, and one to spare."""


class Said:
    """The words about the newest state of each kind. `send` drops a message without a session."""

    def __init__(self, send: Callable[[wire.NodeMessage], None]) -> None:
        self._send = send
        self._newest: dict[str, list[wire.NodeMessage]] = {}

    def say(self, message: wire.NodeMessage) -> None:
        """Says it now, and in every new session until something newer is asked or said."""
        kind, round = _about(message)
        kept = [each for each in self._newest.get(kind, ()) if _about(each)[1] == round]
        self._newest[kind] = [*kept, message][-WORDS_MAX:]
        self._send(message)

    def forget(self, kind: str) -> None:
        """Something else is asked for: what was said before answers nothing any more."""
        self._newest.pop(kind, None)

    def repeat(self) -> None:
        """Says everything again, in a new session. The coordinator ignores what it knows."""
        for words in self._newest.values():
            for message in words:
                self._send(message)


def _about(message: wire.NodeMessage) -> tuple[str, int]:
    if message.WhichOneof("kind") == "checkpoint":
        return "checkpoint", message.checkpoint.round
    return "evaluation", message.evaluated.round
