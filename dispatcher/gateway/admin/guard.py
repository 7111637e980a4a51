"""Who may use the admin API: a bearer token, or (where none is set) the same machine."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from fastapi import Request

from dispatcher.gateway.errors import ApiError
from dispatcher.gateway.parsing.hints import HeaderBag
from dispatcher.gateway.runtime import Gateway
from dispatcher.gateway.tenants import bearer


def check_admin(gateway: Gateway, request: Request) -> None:
    """Let an administrator pass.

    Raises:
        ApiError: 401 without the token; where none is set, 403 from another machine or from a web
            page of somebody else's, which a browser on this machine may be showing.
    """
    token = gateway.settings.server.admin_token
    if token is None:
        if not _is_loopback(request):
            raise ApiError(
                403,
                "The admin API answers this machine only, since server.admin_token is not set.",
                code="admin_loopback_only",
            )
        if _is_foreign_page(request):
            raise ApiError(
                403,
                "The admin API answers no page of another site, since server.admin_token is not"
                " set.",
                code="admin_loopback_only",
            )
        return
    given = bearer(HeaderBag(request.scope["headers"]).get("authorization"))
    if given is None or not hmac.compare_digest(given, token.encode()):
        raise ApiError(
            401,
            "The admin API asks for `Authorization: Bearer <server.admin_token>`.",
            code="invalid_admin_token",
            headers=[(b"www-authenticate", b"Bearer")],
        )


def _is_foreign_page(request: Request) -> bool:
    """Browsers name the site of a page that has them send something; other clients do not."""
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc != request.headers.get("host")


def _is_loopback(request: Request) -> bool:
    """By the socket's peer; headers that a proxy may have set do not count."""
    client = request.client
    if client is None:
        return False
    try:
        address = ipaddress.ip_address(client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
