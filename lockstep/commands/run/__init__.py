"""`lockstep run`: the operator's levers of a run whose coordinator works on this machine."""
