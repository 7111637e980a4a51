"""Who may call, how much, and how urgently. Without tenants no key is asked for."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.config import TenantSettings
from dispatcher.gateway.errors import ApiError, retry_after
from dispatcher.gateway.parsing.hints import TENANT, HeaderBag
from dispatcher.gateway.parsing.spec import TenantTerms

_MINUTE_S = 60.0
_SCOPE_END = "|"
"""Parts a tenant's name from its ids; no name of a tenant has one."""


@dataclass(slots=True)
class Tenant:
    """One tenant and what it is using."""

    terms: TenantTerms
    max_in_flight: int | None = None
    tokens_per_minute: int | None = None
    in_flight: int = 0
    #: tokens that may still be used now; refills steadily, never above one minute's worth
    _tokens: float = field(default=0.0)
    _refilled_s: float | None = None

    def enter(self, now_s: float) -> None:
        """A call begins.

        Raises:
            ApiError: 429 over a quota, with `Retry-After`.
        """
        if self.max_in_flight is not None and self.in_flight >= self.max_in_flight:
            raise ApiError(
                429,
                f"Tenant {self.terms.name} has {self.in_flight} calls at once, the most it may.",
                code="tenant_in_flight",
                headers=retry_after(1.0, "tenant_in_flight"),
            )
        if self.tokens_per_minute is not None:
            self._refill(now_s)
            if self._tokens <= 0:
                wait_s = (1.0 - self._tokens) * _MINUTE_S / self.tokens_per_minute
                raise ApiError(
                    429,
                    f"Tenant {self.terms.name} has used its {self.tokens_per_minute} tokens a"
                    " minute.",
                    code="tenant_tokens",
                    headers=retry_after(wait_s, "tenant_tokens"),
                )
        self.in_flight += 1

    def leave(self) -> None:
        """A call that had entered is over."""
        self.in_flight -= 1

    def charge(self, tokens: int, now_s: float) -> None:
        """Tokens were used; the balance may go below zero, which the next calls wait out."""
        if self.tokens_per_minute is not None:
            self._refill(now_s)
            self._tokens -= tokens

    def _refill(self, now_s: float) -> None:
        most = float(self.tokens_per_minute or 0)
        if self._refilled_s is None:
            self._tokens = most
        else:
            gained = (now_s - self._refilled_s) * most / _MINUTE_S
            self._tokens = min(most, self._tokens + gained)
        self._refilled_s = now_s


class Tenants:
    """All of them, by key."""

    def __init__(self, settings: Sequence[TenantSettings]) -> None:
        self._by_key: list[tuple[bytes, Tenant]] = []
        self._named: dict[str, Tenant] = {}
        self._anyone = Tenant(TenantTerms())
        self.reload(settings)

    def reload(self, settings: Sequence[TenantSettings]) -> None:
        """Take new keys and limits; what is in use is kept by name."""
        before = self._named
        self._by_key = []
        self._named = {}
        for one in settings:
            tenant = before.get(one.name) or Tenant(TenantTerms())
            tenant.terms = TenantTerms(
                one.name,
                one.max_class,
                one.weight,
                one.reject_late,
                scope=one.name + _SCOPE_END,
            )
            tenant.max_in_flight = one.max_in_flight
            tenant.tokens_per_minute = one.tokens_per_minute
            self._named[one.name] = tenant
            self._by_key.append((one.api_key.encode(), tenant))

    def get(self, name: str) -> Tenant | None:
        """A configured tenant."""
        return self._named.get(name)

    def identify(self, bag: HeaderBag) -> Tenant:
        """The tenant that a key belongs to; anyone, where no tenant is configured.

        Raises:
            ApiError: 401 without a key, or with one that is not known.
        """
        if not self._by_key:
            return self._anyone
        key = bearer(bag.get("authorization")) or bag.get("x-api-key") or bag.get("api-key")
        if key is None:
            raise _unauthorised("No API key was given; send `Authorization: Bearer <key>`.")
        found = None
        for known, tenant in self._by_key:
            # every key is compared, each in constant time, so that time tells nothing
            if hmac.compare_digest(known, key.strip()):
                found = tenant
        if found is None:
            raise _unauthorised("The API key is not known.")
        return found

    def terms_for(self, tenant: Tenant, bag: HeaderBag) -> TenantTerms:
        """A tenant's terms; a name from the headers counts where no key says who it is."""
        if self._by_key:
            return tenant.terms
        name = bag.text(TENANT)
        return tenant.terms if name is None else TenantTerms(name=name)


def bearer(authorization: bytes | None) -> bytes | None:
    """The token of an `Authorization: Bearer` header."""
    if authorization is None or authorization[:7].lower() != b"bearer ":
        return None
    return authorization[7:].strip()


def _unauthorised(message: str) -> ApiError:
    return ApiError(
        401, message, code="invalid_api_key", headers=[(b"www-authenticate", b"Bearer")]
    )
