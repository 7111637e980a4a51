"""The gateway: the scheduler core between real sockets."""
