"""One authenticated link per pair of peers, over any transport. May import `node.transports`,
`node.system` and `node.traffic`.

    network                     the interface to the swarm
    mesh                        the links of one node, and their tasks
    kept_peers                  the peers that are dialled, and the task of each
    link_table                  which links stay, and who leaves for whom. Pure
    link, fetching, serving     one open link, and its two halves
    protocol                    the link as one end sees it; handshake, requests, window, frames
                                and protocol_events are its parts. Pure
    uplink, upload_queue        this node's upload, and its order
    quality/                    measurements of links, and the reports of them
"""
