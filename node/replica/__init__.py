"""The state that every node has equal, to the bit: parameters, their digest, snapshots. Imports
`model`, `data`, `demo`, `system`.
"""
