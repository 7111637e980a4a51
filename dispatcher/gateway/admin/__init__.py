"""The admin API: what decides, the fleet, the queues, explanations."""
