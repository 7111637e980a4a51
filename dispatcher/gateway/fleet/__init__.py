"""The engines as the gateway knows them: settings, connections, health, what they serve."""
