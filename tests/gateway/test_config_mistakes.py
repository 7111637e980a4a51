"""Wrong settings: who set them and what was expected is said, keys and tokens are not."""

from __future__ import annotations

import copy
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml
from gateway_harness import MODEL, gateway, ok, scripted
from pydantic import ValidationError
from typer.testing import CliRunner

from dispatcher import cli
from dispatcher.config import Settings, load_settings
from dispatcher.config.settings import COUNT_MAX, SECONDS_MAX
from dispatcher.core.errors import ConfigurationError
from dispatcher.gateway.server import GatewayServer, _Reload

SECRET = "hush-hush"
SECRETIVE: dict[str, Any] = {
    "server": {"port": 1234, "admin_token": f"{SECRET}-0"},
    "tenants": [
        {"name": "a", "api_key": f"{SECRET}-1", "weight": 2},
        {"name": "b", "api_key": f"{SECRET}-2"},
    ],
    "engines": [
        {"id": "e", "url": "http://e:1", "api_key": f"{SECRET}-3", "seats": 4},
        {"id": "f", "url": "http://f:1"},
    ],
}


def write(directory: Path, settings: object) -> Path:
    path = directory / "headway.yaml"
    path.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))
    return path


def refusal(path: Path | None, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(path, overrides)
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    return str(caught.value)


def places(node: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from places(value, (*at, index))


def spoil(at: tuple[Any, ...], how: str) -> dict[str, Any]:
    """The settings with one mistake."""
    spoilt = copy.deepcopy(SECRETIVE)
    node: Any = spoilt
    for part in at[:-1]:
        node = node[part]
    value = node[at[-1]]
    if how == "misspelt":
        if isinstance(node, list):
            node[at[-1]] = {"x": value}
        else:
            node[f"x{at[-1]}"] = node.pop(at[-1])
    else:
        node[at[-1]] = {
            "listed": [value, [value]],
            "keyed": {"x": value, SECRET[:4]: 1},
            "lined": f"api_key:{SECRET}\n" if isinstance(value, dict | list) else f"{value} x\n",
            "nothing": None,
            "a number": -1,
        }[how]
    return spoilt


MISTAKES = [
    pytest.param(at, how, id=f"{'.'.join(map(str, at))} {how}")
    for at in places(SECRETIVE)
    for how in ("misspelt", "listed", "keyed", "lined", "nothing", "a number")
    if not (how == "nothing" and at[-1] in ("admin_token", "api_key") and at[0] != "tenants")
]


def test_the_settings_to_spoil_are_right(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, SECRETIVE)).server.admin_token == f"{SECRET}-0"


@pytest.mark.parametrize(("at", "how"), MISTAKES)
def test_a_mistake_names_its_line_and_shows_no_secret(
    tmp_path: Path, at: tuple[Any, ...], how: str
) -> None:
    said = refusal(write(tmp_path, spoil(at, how))).splitlines()
    assert all("headway.yaml, line " in line for line in said)
    assert any(f": {at[0]}" in line or f": x{at[0]}" in line for line in said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"server: {{admin_token: *{SECRET}}}", "line 1, column 23: found undefined alias '...'"),
        (f"server: {{admin_token: !{SECRET} x}}", "for the tag '...'"),
        (f"server:\n\tadmin_token: {SECRET}", r"line 2, column 1: found character '\t'"),
        (f'server: {{admin_token: "\\q{SECRET}"}}', "unknown escape character 'q'"),
        (f"tenants:\n- {{api_key:{SECRET}}}", "line 2: tenants.0.api_key...: unknown key"),
        (f"tenants:\n- {{api_key:{SECRET}, api_key:{SECRET}}}", "given twice"),
        (f"tenants:\n- api_key:{SECRET}", "line 2: tenants.0: expected keys and values, not a"),
        (f"x: {SECRET}\0", "a character that YAML does not allow"),
        ("a: &x [*x]", "nested too deep, or within itself"),
        ("[" * 5000, "nested too deep"),
        ("server: {port: 2024-13-45}", "a date or a number that is none"),
        (
            f"tenants:\n- {{name: a, api_key: {SECRET}}}\n- name: b\n  api_key: {SECRET}\n",
            "line 4: tenants.1.api_key: is used by tenants.0 already",
        ),
        (f"engines: [{{id: a, url: 'http://u:{SECRET}@h'}}]", "user or password in the URL; use"),
        (f"engines: [{{id: a, url: 'http://u:{SECRET}/x@h'}}]", "user or password in the URL; use"),
        (f"engines: [{{id: a, url: 'http://h?key={SECRET}'}}]", "expected no query"),
        ("policy:\n  name: nope\n", "line 2: policy.name: no policy is called 'nope'"),
        (
            "policy:\n  params:\n    alpha: 7\n",
            "line 3: policy.params.alpha: hexgen-flow: alpha = 7",
        ),
        ("embedded:\n  size: 70b\n", "line 1: embedded: Llama-3.1-70B needs 141 GB"),
    ],
)
def test_what_else_can_be_wrong_with_a_file(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(write(tmp_path, text))


@pytest.mark.parametrize(
    ("wrong", "at"),
    [
        ("name: nope", ["policy.name"]),
        ("params: {alpha: 7}", ["policy.params.alpha"]),
        (
            "params: {alpha: 7, mode: x, y: 1}",
            [f"policy.params.{n}" for n in ("alpha", "mode", "y")],
        ),
        ("name: heteroserve, params: {bins: [5, 3]}", ["policy.params.bins"]),
        ("name: augserve, params: {beta_low: 2.0}", ["policy.params.beta_low"]),
    ],
)
def test_a_wrong_policy_and_other_mistakes_are_told_at_once(
    tmp_path: Path, wrong: str, at: list[str]
) -> None:
    twins = f"tenants: [{{name: a, api_key: {SECRET}}}, {{name: a, api_key: {SECRET}-2}}]\n"
    said = refusal(write(tmp_path, f"policy: {{{wrong}}}\n{twins}")).splitlines()
    assert [line.split(": ")[1] for line in said] == [
        "tenants.1.name",
        *at,
    ]
    assert not [line for line in said if "Input" in line or "Value error" in line]
    both = refusal(write(tmp_path, f"policy: {{{wrong}, x: 1}}\n")).splitlines()
    assert [line.split(": ")[1] for line in both] == ["policy.x"]


UNUSABLE_ENGINES = [
    ("url", "http://h:99999"),
    ("url", "http://h:0"),
    ("url", "http://h:port"),
    ("url", "http://[h"),
    ("url", "http://"),
    ("url", "h:8000"),
    ("url", "http://hö:1"),
    ("url", "http://h:1/a b"),
    ("url", "http://h:1\r\nx: y"),
    ("url", "http://h:1/?a=b"),
    ("url", "http://h:1/#a"),
    ("url", f"http://u:{SECRET}@h:1"),
    ("api_key", f"{SECRET}é"),
    ("api_key", f"{SECRET}\nx: y"),
    ("api_key", ""),
    ("seats", 0),
    ("seats", True),
    ("seats", 10**30),
    ("seats", "many"),
    ("engine_priority", "often"),
    ("tp", 10**30),
    ("gpu", "B17"),
]


@pytest.mark.parametrize(("key", "value"), UNUSABLE_ENGINES)
def test_what_cannot_work_is_refused_before_it_runs(tmp_path: Path, key: str, value: str) -> None:
    engine = {"id": "a", "url": "http://a", key: value}
    said = refusal(write(tmp_path, {"engines": [engine]}))
    assert f"engines.0.{key}: " in said
    assert len(said.splitlines()) == 1


async def test_the_admin_api_refuses_the_same_and_shows_no_secret() -> None:
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        for key, value in UNUSABLE_ENGINES:
            body = {"id": "new", "url": "http://127.0.0.1:9", "api_key": SECRET, key: value}
            answer = await running.http.post("/admin/engines", json=body)
            assert answer.status_code == 422, (key, value)
            error = answer.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["param"]) == ("invalid_request_error", key)
            assert SECRET not in answer.text
        body = {"id": "e0", "url": engine.url, "api_key": SECRET}
        twice = await running.http.post("/admin/engines", json=body)
        assert twice.status_code == 409
        assert SECRET not in twice.text
        body["id"] = "new"
        assert (await running.http.post("/admin/engines", json=body)).status_code == 201
        assert SECRET not in (await running.http.get("/admin/engines")).text


@pytest.mark.parametrize(
    "text",
    [
        "server: {shutdown_grace_s: .inf}",
        "queue: {max_wait_s: .inf}",
        "fleet: {poll_interval_s: .nan}",
        "fleet: {stall_timeout_s: 1.0e+300}",
        "workflows: {default: {slo_s: .inf}}",
        "workflows: {default: {idle_s: .nan}}",
        "store: {save_interval_s: .inf}",
        "tenants: [{name: a, api_key: k, weight: .inf}]",
        "queue: {max_calls: 1000000000000000000000000}",
        'server: {host: "a\\nb"}',
        'store: {path: "a\\0b"}',
        'models: {aliases: {a: "\\ud800"}}',
    ],
)
def test_numbers_without_bounds_and_texts_that_cannot_be_sent_are_refused(
    tmp_path: Path, text: str
) -> None:
    assert "headway.yaml, line 1: " in refusal(write(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HEADWAY_SERVER__PORT", "x", "server.port: expected an integer"),
        ("headway_server__prot", "1", "server.prot: unknown key; expected one of host"),
        ("HEADWAY_SERVER", '{"prot": 1}', "server.prot: unknown key"),
        ("HEADWAY_ENGINES", '[{"id": "a"}]', "engines.0.url: missing"),
        ("HEADWAY_ENGINES", SECRET, "engines: expected a list as JSON, not a text"),
        ("HEADWAY_ENGINES__0__URL", "http://a", "engines: expected a list as JSON"),
        ("HEADWAY_TENANTS", f'[{{"api_key": "{SECRET}"', "tenants: expected a list as JSON"),
        ("HEADWAY_SERVER__ADMIN_TOKEN", f"{SECRET} x", "server.admin_token: expected printable"),
        ("HEADWAY_POLICY__PARAMS", '{"beta"', "policy.params: expected keys and values as JSON"),
        ("HEADWAY_POLICY__NAME", "nope", "policy.name: no policy is called 'nope'"),
        ("HEADWAY_POLICY__PARAMS", '{"beta": -1}', "policy.params.beta: hexgen-flow: beta = -1"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    for path in (None, write(tmp_path, SECRETIVE)):
        assert refusal(path).startswith(f"environment: {name}: {said}")


def test_a_mistake_is_laid_to_the_source_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "server:\n  port: x\n")
    monkeypatch.setenv("HEADWAY_SERVER__HOST", "")
    said = refusal(path).splitlines()
    assert said[0].startswith("environment: HEADWAY_SERVER__HOST: server.host: ")
    assert said[1].startswith(f"{path}, line 2: server.port: ")
    # what wins is what is judged
    monkeypatch.delenv("HEADWAY_SERVER__HOST")
    monkeypatch.setenv("HEADWAY_SERVER__PORT", "y")
    assert refusal(path).startswith("environment: HEADWAY_SERVER__PORT: server.port: ")
    assert refusal(path, {"server": {"port": 70_000}}).startswith("command line: --port: ")
    assert load_settings(path, {"server": {"port": 70}}).server.port == 70


def test_sections_from_the_environment_are_merged_and_lists_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, {**SECRETIVE, "workflows": {"default": {"slo_s": 5, "idle_s": 6}}})
    monkeypatch.setenv("HEADWAY_WORKFLOWS__DEFAULT__SLO_S", "7")
    monkeypatch.setenv("HEADWAY_SERVER", '{"access_log": true}')
    monkeypatch.setenv("HEADWAY_ENGINES", '[{"id": "x", "url": "http://x"}]')
    settings = load_settings(path, {"policy": {"name": "vllm", "params": {}}})
    assert settings.workflow("default") == (7.0, 6.0)
    assert (settings.server.port, settings.server.access_log) == (1234, True)
    assert [engine.id for engine in settings.engines] == ["x"]
    assert settings.policy.name == "vllm"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "70000"], "command line: --port: server.port: "),
        (["--host", "a b"], "command line: --host: server.host: "),
        (["--engine", "http://a", "--engine", "b"], "command line: --engine: engines.1.url: "),
        (["--policy", "nope"], "command line: --policy: policy.name: "),
    ],
)
def test_a_mistake_on_the_command_line_names_the_option(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli.app, ["serve", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(said)


def test_an_emulator_option_that_is_wrong_is_named() -> None:
    result = CliRunner().invoke(cli.app, ["emulate", "--time-scale", "0"])
    assert result.exit_code == 2
    assert result.stderr.startswith("--time-scale: expected a number greater than 0")


def test_check_config_says_one_mistake_a_line_and_no_secret(tmp_path: Path) -> None:
    path = write(tmp_path, SECRETIVE)
    right = CliRunner().invoke(cli.app, ["check-config", str(path)])
    assert (right.exit_code, right.stderr) == (0, "")
    assert right.stdout == f"{path} is valid: policy hexgen-flow, 2 engines\n"
    one = write(tmp_path, {"engines": [{"id": "a", "url": "http://a"}]})
    assert CliRunner().invoke(cli.app, ["check-config", str(one)]).stdout.endswith(", 1 engine\n")
    write(tmp_path, {**SECRETIVE, "engines": SECRETIVE["engines"][0], "tenants": SECRET})
    wrong = CliRunner().invoke(cli.app, ["check-config", str(path)])
    assert wrong.exit_code == 2
    assert [line.split(": ")[1] for line in wrong.stderr.splitlines()] == ["tenants", "engines"]
    assert SECRET not in right.output + wrong.output


async def test_a_reload_that_is_refused_logs_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, {**SECRETIVE, "engines": SECRET, "policy": {"name": "nope"}})
    async with scripted(ok) as (engine,), gateway([engine.url]) as running:
        server = GatewayServer(uvicorn.Config(running.app, log_config=None), grace_s=0)
        server.gateway = running.gateway
        before = running.gateway.settings
        with caplog.at_level(logging.INFO):
            _Reload(server, before, path, None, embedded=False)()
        assert running.gateway.settings is before
    assert "reload refused, nothing has changed" in caplog.text
    assert "engines: expected a list" in caplog.text
    assert SECRET not in caplog.text


def test_settings_and_their_errors_print_no_secret() -> None:
    assert SECRET not in repr(Settings.model_validate(SECRETIVE))
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({**SECRETIVE, "server": SECRET, "tenants": {"a": SECRET}})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("gpu", [{"gpu": "L40", "size": "70b"}, {"gpu": "H100", "tp": 1024}])
@pytest.mark.parametrize("least", [True, False])
async def test_what_is_accepted_works(tmp_path: Path, gpu: dict[str, Any], least: bool) -> None:
    seconds, count = (0.001, 1) if least else (SECONDS_MAX, COUNT_MAX)
    async with scripted(ok) as (engine,):
        written = {
            "server": {"max_body_mb": 0.001 if least else 1024, "shutdown_grace_s": 0.1},
            "tenants": [
                {
                    "name": "a/b:c._-",
                    "api_key": "!~" * 2048,
                    "max_in_flight": count,
                    "tokens_per_minute": count,
                    "weight": 1e-6 if least else 1e6,
                }
            ],
            "queue": {"max_calls": count, "max_wait_s": 60 if least else seconds},
            "engines": [
                {"id": "a/b:c._-", "url": f"{engine.url}/", "seats": count, "api_key": "~", **gpu}
            ],
            "fleet": {
                "poll_interval_s": 0.05 if least else 60,
                "poll_timeout_s": 60,
                "failures_until_down": count,
                "stall_timeout_s": 5 if least else seconds,
                "connect_timeout_s": 600,
            },
            "models": {"aliases": {"modèle": MODEL}},
            "workflows": {"default": {"slo_s": seconds, "idle_s": seconds}},
            "store": {"path": str(tmp_path / "x.sqlite"), "save_interval_s": max(1, seconds)},
        }
        settings = load_settings(write(tmp_path, written))
        sections = {name: getattr(settings, name) for name in written}
        async with gateway([], expect_up=1, **sections) as running:
            key = {"authorization": f"Bearer {'!~' * 2048}"}
            answers = [await running.chat(model="modèle", headers=key) for _ in range(2)]
            # one token a minute is used up by the first
            assert [a.status_code for a in answers] == [200, 429 if least else 200]
            for path in ("/admin/engines", "/admin/queues", "/admin/workflows", "/metrics"):
                assert (await running.http.get(path, headers=key)).status_code == 200
