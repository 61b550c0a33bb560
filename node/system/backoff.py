"""Pauses between tries. Pure: the caller brings the clock and the chance."""

LOOK_FIRST_MS, LOOK_LONGEST_MS = 250, 2_500
"""First and longest pause between two looks of a few members for the coordinator."""

AWAY_PART = 4
"""A pause is at most this part of the time away, so this is what a look adds to an outage, at most.
A try at a machine that does not answer lasts no longer either."""

TRY_FIRST_MS = 4_000
"""Least limit of a try at a machine that does not answer: two lost packets, or a full line."""

REFUSED_MS = 1_500
"""Least pause after an answer that was a refusal: the coordinator journals every session."""

LOOKS_PER_S = 200
"""Looks of all members together in a second: a coordinator that is back opens about as many
sessions in that time, with two handshakes each."""


class Backoff:
    """Pauses of `first_ms`, twice that, four times that, up to `longest_ms`."""

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._pause_ms = first_ms

    def next(self) -> int:
        """Return the pause after one more failure, in milliseconds, and double it."""
        pause_ms = min(self._pause_ms, self._longest_ms)
        self._pause_ms = 2 * pause_ms
        return pause_ms

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._pause_ms = self._first_ms


class Search:
    """A node that looks for a coordinator which is away.

        looks --found--> there
          ^                |
          '--missed, <-----'
             a pause

    The pause grows with the time away, which only as much time in sessions makes up for: one that
    ends at once is no success.
    """

    def __init__(self) -> None:
        self._owed_ms, self._since_ms = 0, -1
        self._there = self._refused = False

    def looks(self, now_ms: int) -> int:
        """A try begins. Returns the limit of its connection in milliseconds."""
        if self._since_ms < 0:
            self._since_ms = now_ms
        self._refused = False
        return max(TRY_FIRST_MS, self._away_ms(now_ms) // AWAY_PART)

    def heard(self) -> None:
        """The coordinator answers; a refusal, unless a session opens."""
        self._refused = True

    def found(self, now_ms: int) -> None:
        """A session is open."""
        if not self._there:
            self._owed_ms, self._since_ms = self._away_ms(now_ms), now_ms
        self._there, self._refused = True, False

    def missed(self, now_ms: int, members: int) -> int:
        """The try has failed, or its session is lost. Returns the pause before the next one, in
        milliseconds; the caller spreads it from half of it to one and a half.
        """
        if self._there:
            self._owed_ms = max(0, self._owed_ms - (now_ms - self._since_ms))
            self._there, self._since_ms = False, now_ms
        least_ms = max(LOOK_FIRST_MS, 1000 * members // LOOKS_PER_S)
        if self._refused:
            least_ms = max(least_ms, REFUSED_MS)
        return max(least_ms, min(LOOK_LONGEST_MS, self._away_ms(now_ms) // AWAY_PART))

    def _away_ms(self, now_ms: int) -> int:
        return self._owed_ms + (0 if self._there else now_ms - self._since_ms)
