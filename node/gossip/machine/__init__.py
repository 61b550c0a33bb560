"""Pure: decides what is offered to whom and pulled from whom. No IO, no clock, no logging."""
