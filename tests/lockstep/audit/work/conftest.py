"""One prepared corpus for the tests of this folder."""

import pytest

from node.data.corpus import Corpus
from tests.support.tiny import tiny_corpus


@pytest.fixture(scope="package")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))
