"""`python -m docs.generate [--check]`, in the root of the repository.

--check writes nothing: it ends with 1 when a page is not what the code says.
"""

import argparse
import sys

from docs.generate import outdated, write
from docs.generate.tables import ROOT


def main() -> int:
    """Write or compare; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    if not parser.parse_args().check:
        write()
        return 0
    paths = outdated()
    for path in paths:
        print(f"{path.relative_to(ROOT)} is not what the code says; run: python -m docs.generate")
    return int(bool(paths))


if __name__ == "__main__":
    sys.exit(main())
