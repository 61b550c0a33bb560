"""How bytes reach a peer. One module per transport; everything above speaks payloads and
digests."""
