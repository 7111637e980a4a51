"""Bad requests: the status and the words of vLLM 0.32."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from emulated import CHAT, chat_body, engine

COMPLETIONS = "/v1/completions"
TOO_LONG = (
    "This model's maximum context length is 64 tokens. However, your prompt contains at least 65"
    " input tokens, which exceeds this limit even without any output tokens. Please reduce the"
    " length of the input prompt. (parameter=input_tokens, value=65)"
)


def found(kind: str, loc: str, msg: str, shown: str, ctx: str = "") -> str:
    return (
        f"1 validation error:\n  {{'type': '{kind}', 'loc': '{loc}', 'msg': '{msg}',"
        f" 'input': '{shown}'{ctx}}}"
    )


NOT_AN_INTEGER = "Input should be a valid integer, unable to parse string as an integer"


@pytest.mark.parametrize(
    ("raw", "param", "message"),
    [
        (
            b'{"model": "tiny", ',
            "body.18",
            found(
                "json_invalid", "body.18", "JSON decode error", "<dict of 0 items>",
                ", 'ctx': {'error': 'Expecting property name enclosed in double quotes'}",
            ),
        ),
        (b"", "body", found("missing", "body", "Field required", "None")),
        (
            b"[1,2]",
            "body",
            found(
                "model_attributes_type", "body",
                "Input should be a valid dictionary or object to extract fields from",
                "<list of 2 items>",
            ),
        ),
    ],
)  # fmt: skip
async def test_bodies_that_cannot_be_read(
    client: httpx.AsyncClient, raw: bytes, param: str, message: str
):
    response = await client.post(CHAT, content=raw)
    assert response.status_code == 400
    error = {"message": message, "type": "Bad Request", "param": param, "code": 400}
    assert response.json() == {"error": error}


@pytest.mark.parametrize(
    ("fields", "kind", "msg", "shown"),
    [
        ({"max_tokens": "abc"}, "int_parsing", NOT_AN_INTEGER, "abc"),
        ({"messages": "x"}, "list_type", "Input should be a valid list", "x"),
        (
            {"stream": "maybe"},
            "bool_parsing",
            "Input should be a valid boolean, unable to interpret input",
            "maybe",
        ),
        ({"priority": None}, "int_type", "Input should be a valid integer", "None"),
        (
            {"priority": 1.5},
            "int_from_float",
            "Input should be a valid integer, got a number with a fractional part",
            "1.5",
        ),
    ],
)
async def test_wrong_types(
    client: httpx.AsyncClient, fields: dict[str, Any], kind: str, msg: str, shown: str
):
    response = await client.post(CHAT, json=chat_body(**fields))
    loc = f"body.{next(iter(fields))}"
    error = {
        "message": found(kind, loc, msg, shown),
        "type": "Bad Request",
        "param": loc,
        "code": 400,
    }
    assert (response.status_code, response.json()) == (400, {"error": error})


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (
            CHAT,
            chat_body(max_tokens=0),
            "max_tokens",
            "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
        ),
        (
            CHAT,
            chat_body(max_tokens=65),
            "max_tokens",
            "max_tokens=65 cannot be greater than max_model_len=64. Please request fewer output"
            " tokens. (parameter=max_tokens, value=65)",
        ),
        (
            CHAT,
            chat_body(min_tokens=9),
            None,
            "min_tokens must be less than or equal to max_tokens=4, got 9.",
        ),
        (CHAT, chat_body(n=0), None, "n must be at least 1, got 0."),
        (
            CHAT,
            chat_body(temperature=-1),
            "temperature",
            "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
        ),
        (
            CHAT,
            chat_body(top_p=2),
            "top_p",
            "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)",
        ),
        (
            CHAT,
            chat_body(messages=[]),
            None,
            "Cannot apply chat template to an empty conversation. Provide at least one message.",
        ),
        (
            CHAT,
            chat_body(stream_options={"include_usage": True}),
            "stream_options",
            "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
        ),
        (CHAT, chat_body("a b c " * 200), "input_tokens", TOO_LONG),
        (CHAT, chat_body("word " * 64, stream=True), "input_tokens", TOO_LONG),
        (
            COMPLETIONS,
            {"model": "tiny"},
            "prompt",
            "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)",
        ),
        (
            COMPLETIONS,
            {"model": "tiny", "prompt": list(range(200, 300))},
            "input_tokens",
            TOO_LONG.replace("at least 65", "100").replace("value=65", "value=100"),
        ),
    ],
)
async def test_what_cannot_be_done(path: str, body: dict[str, Any], param: str, message: str):
    async with engine(max_model_len=64) as client:
        response = await client.post(path, json=body)
    error = {"message": message, "type": "BadRequestError", "param": param, "code": 400}
    assert (response.status_code, response.json()) == (400, {"error": error})


async def test_prompt_and_max_tokens_over_the_limit_are_clipped():
    async with engine(max_model_len=64) as client:
        response = await client.post(CHAT, json=chat_body("word " * 40, max_tokens=60))
    usage = response.json()["usage"]
    assert usage["total_tokens"] == 64


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/responses", "/tokenize"])
async def test_unknown_model(client: httpx.AsyncClient, path: str):
    body = {"model": "nope", "messages": [{"role": "user", "content": "x"}], "prompt": "x"}
    response = await client.post(path, json={**body, "input": "x"})
    error = {
        "message": "The model `nope` does not exist. Valid aliases: tiny.",
        "type": "NotFoundError",
        "param": "model",
        "code": 404,
    }
    assert (response.status_code, response.json()) == (404, {"error": error})


async def test_messages_route_gives_anthropic_s_shape_once_the_body_is_parsed(
    client: httpx.AsyncClient,
):
    body = {"model": "nope", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    response = await client.post("/v1/messages", json=body)
    message = "The model `nope` does not exist. Valid aliases: tiny."
    assert (response.status_code, response.json()) == (
        404,
        {"type": "error", "error": {"type": "NotFoundError", "message": message}},
    )
    response = await client.post("/v1/messages", json={**body, "max_tokens": "abc"})
    assert (response.status_code, response.json()["error"]["type"]) == (400, "Bad Request")


@pytest.mark.parametrize(
    ("method", "path", "status", "detail"),
    [
        ("GET", "/nope", 404, "Not Found"),
        ("POST", "/v1/embeddings", 404, "Not Found"),
        ("GET", CHAT, 405, "Method Not Allowed"),
        ("DELETE", "/health", 405, "Method Not Allowed"),
    ],
)
async def test_unknown_routes(
    client: httpx.AsyncClient, method: str, path: str, status: int, detail: str
):
    response = await client.request(method, path)
    assert (response.status_code, response.json()) == (status, {"detail": detail})


@pytest.mark.parametrize(
    ("path", "authorization", "status"),
    [
        ("/v1/models", None, 401),
        ("/v1/models", "Bearer wrong", 401),
        ("/v1/models", "Basic secret", 401),
        ("/v1/nope", None, 401),
        ("/v1/models", "Bearer secret", 200),
        ("/health", None, 200),
        ("/metrics", None, 200),
        ("/version", None, 200),
    ],
)
async def test_the_key_guards_v1_only(path: str, authorization: str | None, status: int):
    async with engine(api_key="secret") as client:
        headers = {"authorization": authorization} if authorization else {}
        response = await client.get(path, headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.json() == {"error": "Unauthorized"}
