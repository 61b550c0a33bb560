"""Mixing by pairs: the graph of a round, the weights of its edges, and the distance between nodes.

Pure: numpy and nothing else; `link_report` without it.

    topologies       which members exchange parameters in a round
    weights          edges that both ends commit, their weights, and a topology judged once
    measured_links   links as both ends measure them, and the fast groups that follow
    consensus        how far nodes are apart, from short reports, and when that is too far
"""
