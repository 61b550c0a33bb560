"""`lockstep verify --proof FILE`: checks a proof that a coordinator's key has signed two histories
of one run, with nothing but the file.
"""

from pathlib import Path

from lockstep.console import output, write_json
from node.system.files import read_range
from protocol.codec.heads import PROOF_BYTES_MAX, read_proof
from protocol.errors import DataError, DivergedError, StorageError


def verify_proof(path: Path, json_path: str | None) -> None:
    """Prints what the file proves. `DivergedError` when that is nothing, `StorageError` when it
    cannot be read.
    """
    blob = read_range(path, 0, PROOF_BYTES_MAX + 1)
    if blob is None:
        raise StorageError(f"expected a proof in {path}, found no file")
    try:
        proof = read_proof(blob)
    except DataError as error:
        raise DivergedError(f"{path} proves nothing: {error}") from None
    if json_path is not None:
        found = {"run_id": proof.run_id, "coordinator_key": proof.coordinator_key.hex()}
        write_json(json_path, found | {"proven": proof.words})
    if json_path != "-":
        output.print(f"Proven: {proof.words}.", soft_wrap=True, markup=False, highlight=False)
