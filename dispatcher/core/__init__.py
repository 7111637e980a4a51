"""The scheduler without I/O: events in, commands out, standard library only.

`types` and `workflow_types` are the words, `events` what may happen, `commands` what the core asks
for, `ports` what a policy, a predictor or the workflow tracker must offer, `coordinator` the one
place where scheduling state changes.
"""
