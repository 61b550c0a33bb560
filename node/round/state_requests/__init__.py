"""The work on a state that the coordinator asks of one member at a time: publishing it, measuring
its validation loss.
"""
