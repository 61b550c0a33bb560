"""What hosts without a key cost a public run: `python -m tests.benchmarks.siege`."""
