"""Ask a URL whether its server is healthy: exit status 0 when it answers 200, 1 otherwise.

Runs inside the image, which has no curl. Standard library only, and no proxy is ever asked.
"""

from __future__ import annotations

import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

TIMEOUT_S = 4.0
"""Below the five seconds that Docker gives the command."""


def main(arguments: list[str]) -> int:
    """Return the exit status: 2 for a URL that cannot be used."""
    if len(arguments) != 1:
        sys.stderr.write("usage: healthcheck.py URL\n")
        return 2
    url = urlsplit(arguments[0])
    if url.scheme != "http" or not url.hostname:
        sys.stderr.write(f"expected http://host[:port]/path, not {arguments[0]!r}\n")
        return 2
    connection = HTTPConnection(url.hostname, url.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", url.path or "/")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        sys.stderr.write(f"{arguments[0]}: {error}\n")
        return 1
    finally:
        connection.close()
    if status != 200:
        sys.stderr.write(f"{arguments[0]}: HTTP {status}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
