"""The web page of a run: its files, its documents, and the two ports that serve it, the operator's
and that for everybody. It runs no code of another host: charts are drawn by uPlot 1.6.32 (MIT),
which lies in `assets/` as its authors build it.
"""
