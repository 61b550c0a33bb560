"""The payloads of rounds: who holds them, and when one is void. Pure."""
