"""Strangers who mean harm, against a coordinator, nodes and an auditor as real processes.

An early version was attacked by strangers; 31 findings, F1 to F31, told what they got. Each finding
that strangers at a port can play is an attack here, in `catalogue`. The others need another party:

    F8   somebody between node and coordinator      tests/node/system/test_tls.py
    F19  a run file that takes all memory           tests/lockstep/volunteer/test_needs.py
    F22  a key that others can read                 tests/lockstep/service/test_keys.py
    F24  names and addresses that all can read      nothing is held back: `lockstep join` says so
    F26  decoders of a hostile coordinator's bytes  tests/fuzz/test_fuzz.py
    F27  another libp2p daemon                      tests/node/transports/libp2p/test_daemon.py
    F28  what grows over weeks                      tests/coordinator/machine/rules
    F29  containers                                 tests/deploy/test_compose_file.py
    F30  kill -9                                    tests/processes/test_coordinator_kill.py

A later review began to count anew. What hosts do beneath a call, S1 to S4, is a siege
(tests/processes/siege), also against processes that may open only few files
(tests/processes/test_descriptors.py).

Beside honest nodes two keys that confirm each other (F4) burn no steps; without any they make none:
tests/processes/test_strangers.py.
"""
