"""One round whose payloads are added by summers: the draw, the parts that they hold, and what they
find. Pure. `coordinator.machine.rules.sums` changes it.
"""
