"""Reading a request: its id, its body within bounds, its tenant."""

from __future__ import annotations

from dispatcher.gateway.calls import Receive, new_id
from dispatcher.gateway.errors import ApiError, Send, bad_request, send_json
from dispatcher.gateway.parsing.hints import HeaderBag, request_id_of
from dispatcher.gateway.relay.headers import RawHeaders


def request_id_or_new(bag: HeaderBag) -> str:
    """The client's request id; one of ours where it has none or it cannot be read."""
    try:
        return request_id_of(bag) or new_id("req")
    except ApiError:
        return new_id("req")


async def read_request_body(receive: Receive, bag: HeaderBag, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413 where it is larger, whether or not it says so beforehand.
        ConnectionResetError: The client hung up while sending.
    """
    announced = bag.get("content-length")
    if announced is not None:
        if not announced.isdigit():
            raise bad_request("Header content-length: expected a number.", param="content-length")
        if int(announced) > limit_bytes:
            raise too_large(limit_bytes)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client hung up while sending its request")
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise too_large(limit_bytes)
        if part:
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def too_large(limit_bytes: int) -> ApiError:
    """The 413. What the client still sends is read and thrown away, so that it sees the answer."""
    return ApiError(
        413, f"The body is larger than {limit_bytes / 1e6:g} MB.", code="body_too_large"
    )


async def send_error(
    send: Send, error: ApiError, request_id: str, extra: RawHeaders | None = None
) -> None:
    """An error as the whole answer. The error stays as it is: more calls may end with it."""
    headers = [(b"x-request-id", request_id.encode("latin-1")), *error.headers, *(extra or [])]
    await send_json(send, error.status, error.body(), headers)
