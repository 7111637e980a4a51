import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.gateway.relay import CHAT, MESSAGES, edit_body, wants_usage


def edit(raw: bytes, dialect=CHAT, **options) -> bytes:
    return edit_body(raw, orjson.loads(raw.removeprefix(b"\xef\xbb\xbf")), dialect, **options)


def test_nothing_to_do_is_nothing_done():
    raw = b' {"model" : "m"}'
    assert edit(raw) is raw
    assert edit(raw, model="m") is raw


@pytest.mark.parametrize(
    ("raw", "edited"),
    [
        (b"{}", b'{"priority":5}'),
        (b" \r\n{ }", b' \r\n{"priority":5 }'),
        (b'\xef\xbb\xbf{"a":1.0}', b'{"priority":5,"a":1.0}'),
        (b'\t{"a" : [1e400, 2],"a":3}', None),
        (
            b'{"n":123456789012345678901234567890}',
            b'{"priority":5,"n":123456789012345678901234567890}',
        ),
    ],
)
def test_members_are_put_in_front_and_the_rest_is_as_sent(raw: bytes, edited: bytes | None):
    if edited is None:
        edited = raw.replace(b"{", b'{"priority":5,')
        parsed = {"a": 3}
    else:
        parsed = orjson.loads(raw.removeprefix(b"\xef\xbb\xbf"))
    assert edit_body(raw, parsed, CHAT, priority=5) == edited


@pytest.mark.parametrize(
    "raw",
    [
        b'{"priority":-9,"model":"m"}',
        b'{"model":"m","priority":-9}',
        b'{"prior\\u0069ty":-9,"x":{"priority":1},"model":"m"}',
        b'{"priority":1,"model":"m","priority":-9}',
    ],
)
@pytest.mark.parametrize("ours", [None, 0, 7])
def test_a_clients_priority_never_reaches_the_engine(raw: bytes, ours: int | None):
    edited = orjson.loads(edit(raw, priority=ours))
    assert edited.get("priority") == ours
    assert edited["model"] == "m"


def test_usage_is_asked_for_where_the_client_did_not():
    raw = b'{"stream":true,"x":1}'
    assert edit(raw) == b'{"stream_options":{"include_usage":true},"stream":true,"x":1}'
    assert edit(raw, MESSAGES) is raw
    for untouched in (
        b'{"stream":false}',
        b'{"stream":true,"stream_options":{"include_usage":true}}',
        b'{"stream":true,"stream_options":"nonsense"}',
    ):
        assert edit(untouched) is untouched
    for options in ("null", "{}", '{"include_usage":false}'):
        edited = orjson.loads(edit(b'{"stream":true,"stream_options":%b}' % options.encode()))
        assert edited["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("declined", ["", ',"include_usage":false'])
def test_usage_that_a_client_declined_does_not_come_with_every_event(declined: str):
    """Engines heed `continuous_usage_stats` where usage is on: as we turn it on, so would they."""
    raw = (
        f'{{"stream":true,"stream_options":{{"continuous_usage_stats":true,"other":1{declined}}}}}'
    )
    edited = orjson.loads(edit(raw.encode()))
    assert edited["stream_options"] == {"include_usage": True, "other": 1}


def test_usage_with_every_event_stays_where_the_client_wants_usage():
    raw = b'{"stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":true}}'
    assert edit(raw) is raw


def test_whether_a_client_wants_usage():
    assert wants_usage({"stream_options": {"include_usage": True}})
    for options in (None, {}, {"include_usage": False}, "x", {"include_usage": 1}):
        assert not wants_usage({"stream_options": options})
    assert not wants_usage({})


def test_an_alias_is_cut_out_in_place():
    raw = b'{ "model" : "gpt-4o", "seed":123456789012345678901234567890 }'
    assert edit(raw, model="llama") == raw.replace(b"gpt-4o", b"llama")
    escaped = b'{"model":"gpt\\u002d4o","x":1}'
    assert orjson.loads(edit(escaped, model="llama")) == {"model": "llama", "x": 1}
    nested = b'{"metadata":{"model":"gpt-4o"},"model":"gpt-4o"}'
    assert orjson.loads(edit(nested, model="llama")) == {
        "metadata": {"model": "gpt-4o"},
        "model": "llama",
    }
    hidden = b'{"mod\\u0065l":"gpt-4o","x":{"model":"gpt-4o"}}'
    assert orjson.loads(edit(hidden, model="llama")) == {"model": "llama", "x": {"model": "gpt-4o"}}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=9,
)
_KEYS = st.sampled_from(["model", "priority", "stream", "stream_options"]) | st.text(max_size=5)


@given(
    body=st.dictionaries(_KEYS, _JSON, max_size=6),
    priority=st.none() | st.integers(-(2**31), 2**31),
    model=st.none() | st.text(max_size=6),
)
def test_an_edit_changes_what_it_should_and_nothing_else(body, priority, model):
    edited = orjson.loads(edit(orjson.dumps(body), priority=priority, model=model))
    expected = {key: value for key, value in body.items() if key != "priority"}
    if priority is not None:
        expected["priority"] = priority
    if model is not None:
        expected["model"] = model
    if body.get("stream") is True and not wants_usage(body):
        options = body.get("stream_options")
        if options is None or isinstance(options, dict):
            kept = {k: v for k, v in (options or {}).items() if k != "continuous_usage_stats"}
            expected["stream_options"] = {**kept, "include_usage": True}
    assert edited == expected
