"""What clients call."""
