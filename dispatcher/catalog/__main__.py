"""Prints the table of docs/policies.md."""

import sys

from dispatcher.catalog import policy_table

if __name__ == "__main__":
    sys.stdout.write(policy_table())
