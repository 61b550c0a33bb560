"""Simulated gossip: `python -m tests.benchmarks.gossip`. Over shaped links: `.gossip.shaped`."""

from tests.benchmarks.gossip.simulated import main

if __name__ == "__main__":
    main()
