"""The pieces of a round, which the trainer puts in order: agenda and inbox, compute, decisions,
catch-up, crash recovery, receipts, deadline. Imports every room of node/ but `process`, `trainer`
and `relay`.
"""
