"""The libp2p transport: hivemind's daemon as a process, spoken to directly."""
