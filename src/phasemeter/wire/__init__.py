"""Bytes in, stream events out. Knows every API's stream; knows no clock, no socket and no metric."""
