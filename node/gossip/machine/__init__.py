"""Pure: decides what is offered to which peer and pulled from which one. No IO, no clock, no
logging.
"""
