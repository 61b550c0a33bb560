"""`lockstep run`: the operator's orders to a run whose coordinator works on this machine."""
