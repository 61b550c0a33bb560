"""`lockstep join` with the patience of slow motion: `python -m tests.benchmarks.sums.slow_node 8
join ...`.
"""

import sys

from lockstep.cli import main as lockstep
from tests.benchmarks.wan.slow_motion import slow_waits

if __name__ == "__main__":
    slow_waits(int(sys.argv.pop(1)))
    sys.exit(lockstep())
