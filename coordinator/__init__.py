"""The coordinator of a run: keeps its clock, decides its rounds, signs its commits. It sees digests,
never gradients, and runs without torch. `machine` decides, the modules beside it carry out."""
