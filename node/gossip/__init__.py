"""How payloads spread: offers, pulls, the payload log.

Imports `links`, `system` and `traffic`.

    swarm                       the node among its peers: the shell of `machine/`
    machine/                    decides which offers to make, and what to pull from which peer. Pure
    outbox, announcements       offers to peers, and the signatures that travel with them
    fetcher, transfer           pulls: the bytes of payloads, part by part
    payload_check, payload_log  payloads judged, and on disk
    blob_server                 payloads and snapshots for peers
    collector                   waits for the payloads of commits
    address_book, background,   the swarm's peers, its tasks, and the faults of peers
    fault_log
"""
