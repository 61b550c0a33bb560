"""The WAN laboratory: home links between network namespaces, see `lab.py`."""
