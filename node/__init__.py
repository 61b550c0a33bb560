"""Trains: DeMo, the round, gossip, catch-up."""
