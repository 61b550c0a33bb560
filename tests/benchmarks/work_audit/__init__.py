"""How well sign agreement tells honest work: `python -m tests.benchmarks.work_audit`."""
