"""From a client's headers and body to what scheduling needs; pure functions."""
