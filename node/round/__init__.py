"""The pieces of a round that the trainer puts in order: compute, deadline, catch-up, crash
recovery, receipts. Imports every room below.
"""
