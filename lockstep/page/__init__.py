"""The coordinator's web page: its files, and the routes that serve them. It runs no code of another
host: charts are drawn by uPlot 1.6.32 (MIT), which lies in `assets/` as its authors build it.
"""
