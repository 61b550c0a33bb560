"""`python -m tests.benchmarks.gossip`: gossip simulated; over shaped links it is `.gossip.shaped`."""

from tests.benchmarks.gossip.simulated import main

if __name__ == "__main__":
    main()
