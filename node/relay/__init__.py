"""The node that does not train: holds payloads of a run and forwards them. Imports `gossip`,
`control`, `settings`, `links`, `transports`, `system` and `traffic`; no torch.
"""
