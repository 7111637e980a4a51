"""Serving: uvicorn with our own idea of how a gateway ends and reloads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import uvicorn

from dispatcher.collector import GATEWAY_OBJECTS, leave_out_what_is_here, seldom_collecting
from dispatcher.config import Settings, reload_settings
from dispatcher.core.errors import ConfigurationError, HeadwayError
from dispatcher.gateway.about import counted
from dispatcher.gateway.app import create_app
from dispatcher.gateway.embedded import EmbeddedFleet
from dispatcher.gateway.runtime import Gateway
from dispatcher.tuning import Replay

log = logging.getLogger("headway")

KEEP_ALIVE_S = 75
"""Idle client connections; above what clients and load balancers keep theirs for."""
_BACKLOG = 4096


class ListenError(HeadwayError):
    """The gateway cannot listen where it was told to."""


class GatewayServer(uvicorn.Server):
    """Ends in two steps: turn new calls away and finish what is here, then close.

    A second signal ends the first step; a third one waits for no client at all.
    """

    def __init__(self, config: uvicorn.Config, grace_s: float) -> None:
        super().__init__(config)
        self._grace_s = grace_s
        self.gateway: Gateway | None = None
        self._draining: asyncio.Task[None] | None = None
        self._hurried = False
        self._loop: asyncio.AbstractEventLoop | None = None
        #: hears once it listens
        self.on_listening: Callable[[], None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so; what is here by then is here to stay."""
        await super().startup(sockets)
        leave_out_what_is_here()
        if self.started and self.on_listening is not None:
            self.on_listening()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until a signal ends it."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal has come; called between two bytecodes, so it only leaves a note."""
        if self._loop is None or self.gateway is None or self._hurried:
            self.should_exit = self.force_exit = True
            return
        self._loop.call_soon_threadsafe(self._told_to_end, self.gateway)

    def _told_to_end(self, gateway: Gateway) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain(gateway))
        else:
            self._hurried = True
            gateway.end_grace()

    async def _drain(self, gateway: Gateway) -> None:
        here = gateway.guests.count
        if here:
            log.info("ending: waiting up to %g s for %s", self._grace_s, counted(here, "request"))
        # a second signal may have come before this began
        if not await gateway.drain(0.0 if self._hurried else self._grace_s):
            why = "by a second signal" if self._hurried else f"after {self._grace_s:g} s"
            log.warning("ending: what was left was cut off %s", why)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close; even in a hurry the gateway saves what it has learned."""
        await super().shutdown(sockets)
        if self.force_exit and self.gateway is not None:
            await self.lifespan.shutdown()


async def serve(
    settings: Settings,
    *,
    config_path: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    on_ready: Callable[[Settings, str], None] | None = None,
    replay: Replay | None = None,
) -> None:
    """Run the gateway until SIGTERM or SIGINT.

    Args:
        settings: Checked; without engines, an embedded fleet is started.
        config_path: What SIGHUP reads again.
        overrides: What the command line said, which holds for reloads as well.
        on_ready: Called with the settings and the URL once it listens.
        replay: What the tuner plays recent traffic with; none: alpha is not tuned.

    Raises:
        EmbeddedFleetError: The embedded fleet did not come up.
        ListenError: The port is taken, or the address is not one of this machine's.
    """
    async with contextlib.AsyncExitStack() as stack:
        sockets = _listening(settings.server.host, settings.server.port)
        for one in sockets:
            stack.callback(one.close)
        time_scale = 1.0
        configured = settings
        embedded = not settings.engines
        if embedded:
            fleet = await stack.enter_async_context(EmbeddedFleet(settings.embedded))
            configured = settings.model_copy(update={"engines": fleet.engines})
            store = settings.store.model_copy(update={"path": _apart(settings.store.path)})
            settings = configured.model_copy(update={"store": store})
            time_scale = settings.embedded.time_scale
        server: GatewayServer | None = None

        def started(gateway: Gateway) -> None:
            if server is not None:
                server.gateway = gateway

        app = create_app(settings, engine_time_scale=time_scale, on_start=started, replay=replay)
        config = uvicorn.Config(
            app,
            host=settings.server.host,
            port=settings.server.port,
            http="httptools",
            loop="none",
            lifespan="on",
            proxy_headers=False,
            server_header=False,
            access_log=settings.server.access_log,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
            backlog=_BACKLOG,
        )
        server = GatewayServer(config, settings.server.shutdown_grace_s)
        if on_ready is not None:
            host = settings.server.host
            server.on_listening = functools.partial(_tell, on_ready, settings, server, host)
        reload = _Reload(server, configured, config_path, overrides, embedded)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
        try:
            with seldom_collecting(GATEWAY_OBJECTS):
                await server.serve(sockets)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)


def _listening(host: str, port: int) -> list[socket.socket]:
    """Sockets as asyncio would open them; whoever connects already waits until it serves.

    Raises:
        ListenError: Says what to do about it.
    """
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            sockets.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(_BACKLOG)
            one.setblocking(False)
    except OSError as error:
        for one in sockets:
            one.close()
        raise ListenError(
            f"cannot listen on {host}, port {port}: {error.strerror};"
            " --port or --host (server.port, server.host) name another place, --port 0 a free port"
        ) from error
    return sockets


def _apart(path: str | None) -> str | None:
    """Where an embedded fleet's learned state goes: toys are to teach nothing about real engines.

    Example:
        >>> _apart("/var/lib/headway.sqlite")
        '/var/lib/headway-embedded.sqlite'
    """
    if path is None:
        return None
    whole = Path(path)
    return str(whole.parent / f"{whole.stem}-embedded{whole.suffix}")


def _tell(
    on_ready: Callable[[Settings, str], None], settings: Settings, server: uvicorn.Server, host: str
) -> None:
    on_ready(settings, _url(server, host))


def _url(server: uvicorn.Server, host: str) -> str:
    port = server.servers[0].sockets[0].getsockname()[1]
    return f"http://{'[' + host + ']' if ':' in host else host}:{port}"


class _Reload:
    """What SIGHUP does: engines, policy and keys anew; the rest is refused with a message."""

    def __init__(
        self,
        server: GatewayServer,
        settings: Settings,
        path: Path | None,
        overrides: Mapping[str, object] | None,
        embedded: bool,
    ) -> None:
        self._server = server
        self._settings = settings
        self._path = path
        self._overrides = overrides
        self._embedded = embedded

    def __call__(self) -> None:
        """Reload; nothing changes where the file is wrong."""
        gateway = self._server.gateway
        if gateway is None:
            return
        try:
            fresh, refused = reload_settings(self._path, self._settings, self._overrides)
            if self._embedded and not fresh.engines:
                fresh = fresh.model_copy(update={"engines": self._settings.engines})
            if fresh.policy != self._settings.policy:
                gateway.switch_policy(fresh.policy.name, fresh.policy.params)
        except ConfigurationError as error:
            log.error("reload refused, nothing has changed: %s", error)
            return
        gateway.fleet.reload(fresh.engines)
        gateway.tenants.reload(fresh.tenants)
        self._settings = gateway.settings = fresh
        log.info("reloaded engines, policy and keys")
        if refused:
            log.warning("not taken up without a restart: %s", ", ".join(refused))
