"""The length forest at work: a worker process, micro-batches, who is believed and why."""
