from dispatcher.gateway.relay import is_event_stream, request_headers, response_headers


def test_a_clients_credentials_and_its_connection_stay_here():
    client = [
        (b"host", b"gateway"),
        (b"authorization", b"Bearer client"),
        (b"x-api-key", b"client"),
        (b"cookie", b"s=1"),
        (b"connection", b"keep-alive, X-Hop"),
        (b"x-hop", b"1"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"9"),
        (b"expect", b"100-continue"),
        (b"accept-encoding", b"gzip"),
        (b"content-type", b"application/json"),
        (b"traceparent", b"00-1-2-01"),
        (b"tracestate", b"a=b"),
        (b"x-request-id", b"theirs"),
        (b"x-vllm-priority", b"-1000"),
    ]
    passed = [
        (b"content-type", b"application/json"),
        (b"traceparent", b"00-1-2-01"),
        (b"tracestate", b"a=b"),
        (b"accept-encoding", b"identity"),
    ]
    assert request_headers(client) == [*passed, (b"x-request-id", b"theirs")]
    assert request_headers(client, engine_key="k", request_id="ours") == [
        *passed,
        (b"authorization", b"Bearer k"),
        (b"x-request-id", b"ours"),
    ]
    assert request_headers(client, priority=-5) == [
        *passed,
        (b"x-vllm-priority", b"-5"),
        (b"x-request-id", b"theirs"),
    ]


def test_an_engines_headers_pass_but_for_its_connection():
    engine = [
        (b"date", b"today"),
        (b"server", b"uvicorn"),
        (b"connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"5"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", b"a"),
        (b"set-cookie", b"b"),
        (b"x-request-id", b"engine's"),
    ]
    ours = [(b"x-request-id", b"ours")]
    kept = [(b"content-encoding", b"gzip"), (b"set-cookie", b"a"), (b"set-cookie", b"b"), *ours]
    assert response_headers(engine, extra=ours) == kept
    assert (b"content-length", b"5") in response_headers(engine, keep_length=True)


def test_what_an_event_stream_is():
    assert is_event_stream([(b"content-type", b" Text/Event-Stream; charset=utf-8")])
    assert not is_event_stream([(b"content-type", b"application/json")])
    assert not is_event_stream([])
