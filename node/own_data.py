"""The data that a node trains on: its owner's, or the run's built-in corpus."""

from node.data.corpus import Corpus
from node.data.prepare import prepare_builtin
from node.settings import NodeSettings
from protocol.errors import DataError
from protocol.run_info import RunInfo

BUILTIN_CORPUS = "python-stdlib"


def open_corpus(settings: NodeSettings, info: RunInfo) -> Corpus:
    """The node's data, checked against the run file. Prepares the built-in corpus on first use."""
    spec, directory = info.spec, settings.data
    if directory is None:
        if spec.data.corpus != BUILTIN_CORPUS:
            raise DataError(
                f"the run trains on {spec.data.corpus!r}, which is not built in: prepare it with "
                "`lockstep data prepare` and name its directory with --data"
            )
        directory = (settings.corpora or settings.directory) / BUILTIN_CORPUS
        prepare_builtin(directory)
    corpus = Corpus.open(directory, verify=True)
    expected, found = spec.data.manifest_sha256, corpus.manifest.digest.hex()
    if expected and found != expected:
        raise DataError(f"{directory}: expected the data with manifest {expected}, got {found}")
    corpus.samples(spec.data.sequence_length)
    return corpus
