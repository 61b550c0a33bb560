"""The node that does not train: holds payloads of a run, forwards them, and adds them where its
operator offers that. Imports `gossip`, `control`, `settings`, `links`, `transports`, `system` and
`traffic`; no torch. `adding` alone imports `sums`, and with it numpy.
"""
