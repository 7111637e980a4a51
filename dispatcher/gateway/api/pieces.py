"""Event streams of what takes no seat: nobody reads along, so nothing of them is held."""

from __future__ import annotations

from dispatcher.gateway.errors import Send
from dispatcher.gateway.relay import ClientWatch, Finish, RelayOutcome
from dispatcher.gateway.relay.headers import RawHeaders
from dispatcher.gateway.upstream import EngineResponse, UpstreamError


async def relay_pieces(
    response: EngineResponse, send: Send, *, headers: RawHeaders, watch: ClientWatch
) -> RelayOutcome:
    """Relay a response's head at once, and its body in the pieces in which it comes.

    Args:
        response: Whose body nobody has read from.
        send: ASGI's.
        headers: For the client, complete.
        watch: Entered; a hang-up closes the engine's socket at once.

    Returns:
        The account. Where it is cut short, the response to the client is left unfinished; no other
        engine may be tried any more.
    """
    outcome = RelayOutcome(status=response.status, first_byte_sent=True)
    watch.add(response.abort)
    try:
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        while not outcome.response_complete:
            body = await response.read()
            await send({"type": "http.response.body", "body": body, "more_body": bool(body)})
            outcome.response_complete = not body
    except UpstreamError as error:
        outcome.finish, outcome.error = Finish.CUT_SHORT, str(error)
    except OSError as error:
        outcome.finish, outcome.error = Finish.CLIENT_GONE, str(error)
    finally:
        watch.discard(response.abort)
        response.abort()
    if watch.gone and not outcome.response_complete:
        outcome.finish = Finish.CLIENT_GONE
    return outcome
