"""A published checkpoint beside the replay of its run."""

from pathlib import Path

from lockstep.audit.differences import Difference
from node.model.build import named_parameters_once
from node.model.checkpoint import load_checkpoint
from node.replica.digest import canonical_sha256, state_digest
from node.replica.replica import Replica
from protocol.errors import DataError, DivergedError


class PublishedCheckpoint:
    """A published checkpoint, compared with the state after each round.

    Raises `DataError` when it is no checkpoint of a run, `DivergedError` when it is one of another
    run.
    """

    def __init__(self, directory: Path, run_id: str) -> None:
        loaded = load_checkpoint(directory)
        claims, self.directory = loaded.metadata, directory
        if not isinstance(claims.get("round"), int) or "run_id" not in claims:
            raise DataError(
                f"{directory}: expected a checkpoint with its run_id and its round, "
                f"got {sorted(claims)}"
            )
        if claims["run_id"] != run_id:
            raise DivergedError(
                f"{directory}: expected a checkpoint of run {run_id}, got one of {claims['run_id']}"
            )
        self.round: int = claims["round"]
        parameters = named_parameters_once(loaded.model)
        self._digest, self._sha256 = state_digest(parameters), canonical_sha256(parameters)
        self._met: int | None = None
        self.verdict = ""

    def compare(self, round: int, replica: Replica) -> None:
        """Compares the checkpoint with the replica, which holds the state after `round`.

        Raises `Difference` when `round` is the checkpoint's and the parameters differ.
        """
        if replica.digest == self._digest:
            self._met = round
        if round == self.round:
            if canonical_sha256(replica.committed) != self._sha256:
                met = "" if self._met is None else f"; it holds those of round {self._met}"
                raise Difference(
                    round,
                    f"{self.directory} does not hold the parameters that the log produces{met}",
                )
            self.verdict = f"{self.directory} equals the state of the log at round {round}"

    def require_compared(self, first: int, last: int) -> None:
        """Raises `Difference` when the checkpoint's round was not among those from `first` to
        `last`.
        """
        if not self.verdict:
            raise Difference(
                self.round,
                f"{self.directory} claims to be of round {self.round}: the replay went from round "
                f"{first} to round {last} without a commit of that round",
            )
