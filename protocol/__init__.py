"""What all parties of a run must agree on: messages, encodings, arithmetic. No IO, no clock, no
torch.
"""
