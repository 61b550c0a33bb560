"""What strangers cost a public run: `python -m tests.benchmarks.strangers`."""
