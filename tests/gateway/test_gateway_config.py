"""Settings: defaults, overrides, and errors that say which line is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from dispatcher.config import Settings, load_settings, reload_settings
from dispatcher.core.errors import ConfigurationError

EXAMPLE = """
server: {host: 127.0.0.1, port: 8080, max_body_mb: 64, admin_token: null, access_log: false}
tenants:
  - {name: analytics, api_key: k, max_class: latency, max_in_flight: 64,
     tokens_per_minute: null, weight: 1}
policy: {name: hexgen-flow, params: {alpha: auto}}
queue: {max_calls: 10000, max_wait_s: 600}
engines:
  - {id: a100-0, url: "http://10.0.0.1:8000", gpu: A100-80G, seats: auto,
     engine_priority: auto, api_key: null}
models: {aliases: {gpt-4o: llama-3.1-70b}}
workflows:
  default: {slo_s: 60, idle_s: 300}
  text2sql: {slo_s: 120}
store: {path: headway.sqlite}
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "headway.yaml"
    path.write_text(text)
    return path


def test_the_documented_file_is_valid(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, EXAMPLE))
    assert settings.engines[0].gpu == "A100-80G"
    assert settings.workflow("text2sql") == (120.0, 300.0)
    assert settings.workflow("anything") == (60.0, 300.0)


def test_no_file_means_defaults() -> None:
    settings = load_settings()
    assert (settings.server.port, settings.policy.name) == (8080, "hexgen-flow")
    assert settings.embedded.gpus == ("A100-80G", "A100-80G", "L40", "A6000")
    with pytest.raises(ValidationError):
        settings.server.port = 1


@pytest.mark.parametrize(
    ("text", "line", "key", "expected"),
    [
        ("server:\n  prot: 1\n", 2, "server.prot", "unknown key; expected one of host, port"),
        ("server:\n  port: abc\n", 2, "server.port", "expected an integer"),
        ("server:\n  port: 70000\n", 2, "server.port", "65535"),
        ("sevrer: {}\n", 1, "sevrer", "unknown key; expected one of server"),
        ("engines:\n- id: a\n", 2, "engines.0.url", "missing"),
        ("engines:\n- id: a\n  url: ftp://x\n", 3, "engines.0.url", "http(s)://"),
        (
            "engines:\n- {id: a, url: 'http://a'}\n- {id: b, url: 'http://b', gpu: B17}\n",
            3,
            "engines.1.gpu",
            "unknown GPU",
        ),
        (
            "engines:\n- id: a\n  url: http://a\n  seats: 0\n",
            4,
            "engines.0.seats",
            "auto, or a whole number from 1",
        ),
        ("queue:\n  max_wait_s: -1\n", 2, "queue.max_wait_s", "greater than 0"),
        ("workflows:\n  a:\n    slo: 3\n", 3, "workflows.a.slo", "expected one of slo_s, idle_s"),
        ("server: {port: 1}\nserver: {port: 2}\n", 2, "server", "given twice"),
        ("policy: {name: ''}\n", 1, "policy.name", "at least 1"),
    ],
)
def test_a_mistake_names_its_line_its_key_and_what_was_expected(
    tmp_path: Path, text: str, line: int, key: str, expected: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(write(tmp_path, text))
    message = str(caught.value)
    assert f"line {line}: {key}:" in message
    assert expected in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not YAML"),
        ("- 1\n", "expected sections"),
        (
            "engines:\n- {id: a, url: 'http://a'}\n- {id: a, url: 'http://b'}\n",
            "line 3: engines.1.id: is used by engines.0 already",
        ),
    ],
)
def test_files_that_are_no_settings(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=r"headway\.yaml") as caught:
        load_settings(write(tmp_path, text))
    assert expected in str(caught.value)


def test_keys_are_never_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_settings(write(tmp_path, "tenants:\n- {name: a, api_key: [hush]}\n"))
    assert "hush" not in str(caught.value)


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings(tmp_path / "none.yaml")


def test_the_environment_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, EXAMPLE)
    monkeypatch.setenv("HEADWAY_SERVER__PORT", "9000")
    monkeypatch.setenv("HEADWAY_STORE__PATH", "null")
    monkeypatch.setenv("HEADWAY_POLICY__PARAMS", '{"alpha": 0.25}')
    settings = load_settings(path)
    assert settings.server.port == 9000
    assert settings.server.max_body_mb == 64
    assert settings.store.path is None
    assert settings.policy.params["alpha"] == 0.25
    assert load_settings(path, {"server": {"port": 1234}}).server.port == 1234


def test_a_misspelt_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_SREVER__PORT", "9000")
    with pytest.raises(ConfigurationError, match="HEADWAY_SREVER__PORT"):
        load_settings()
    monkeypatch.delenv("HEADWAY_SREVER__PORT")
    monkeypatch.setenv("HEADWAY_SERVER__PROT", "9000")
    with pytest.raises(ConfigurationError, match=r"server\.prot"):
        load_settings()


def test_variables_that_others_set_are_named_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("HEADWAY_PORT", "HEADWAY_SERVICE_HOST", "HEADWAY_PORT_8080_TCP_ADDR"):
        monkeypatch.setenv(name, "tcp://10.0.0.1:8080")
    monkeypatch.setenv("HEADWAY_SERVER__PORT", "9000")
    assert load_settings().server.port == 9000
    (warning,) = caplog.records
    assert "HEADWAY_PORT, HEADWAY_PORT_8080_TCP_ADDR, HEADWAY_SERVICE_HOST" in warning.message
    assert "10.0.0.1" not in warning.message


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("server: {port: true}", "server.port"),
        ("server: {max_body_mb: true}", "server.max_body_mb"),
        ("queue: {max_calls: true}", "queue.max_calls"),
        ("workflows: {default: {slo_s: true}}", "workflows.default.slo_s"),
        ("tenants: [{name: a, api_key: k, max_in_flight: true}]", "tenants.0.max_in_flight"),
    ],
)
def test_a_flag_is_no_number(tmp_path: Path, text: str, at: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{at}: expected a number, not True"):
        load_settings(write(tmp_path, text))


def test_flags_stay_flags_and_texts_of_the_environment_become_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(
        tmp_path,
        "server: {access_log: true}\n"
        "engines: [{id: a, url: 'http://a', engine_priority: true}]\n"
        "tenants: [{name: a, api_key: k, reject_late: true}]\n",
    )
    monkeypatch.setenv("HEADWAY_SERVER__MAX_BODY_MB", "1")
    monkeypatch.setenv("HEADWAY_QUEUE__MAX_CALLS", "7")
    settings = load_settings(path)
    assert settings.server.access_log is True
    assert settings.engines[0].engine_priority is True
    assert settings.tenants[0].reject_late is True
    assert (settings.server.max_body_mb, settings.queue.max_calls) == (1.0, 7)


def test_no_engine_is_called_as_metrics_call_the_queue_of_all(tmp_path: Path) -> None:
    path = write(tmp_path, "engines: [{id: central, url: 'http://a'}]\n")
    with pytest.raises(ConfigurationError, match=r"engines\.0\.id: expected another name"):
        load_settings(path)


def test_another_policy_starts_from_its_own_defaults(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, "policy: {name: vllm}\n"))
    assert dict(settings.policy.params) == {}


def test_a_reload_takes_what_can_change_and_names_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path, EXAMPLE)
    running = load_settings(path)
    path.write_text(EXAMPLE.replace("hexgen-flow", "vllm").replace("{alpha: auto}", "{}"))
    fresh, refused = reload_settings(path, running)
    assert (fresh.policy.name, refused) == ("vllm", ())
    path.write_text(EXAMPLE.replace("8080", "9090"))
    fresh, refused = reload_settings(path, running)
    assert (fresh.server.port, refused) == (8080, ("server",))
    path.write_text("server: {port: x}\n")
    with pytest.raises(ConfigurationError):
        reload_settings(path, running)


def test_an_engine_url_may_end_in_v1() -> None:
    settings = Settings(engines=[{"id": "a", "url": "http://a:1/v1/"}])  # type: ignore[arg-type]
    assert settings.engines[0].url == "http://a:1"


def test_the_documented_configuration_is_complete_and_states_the_defaults(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "configure.md").read_text()
    text = page.split("```yaml\n")[1].split("```")[0]
    settings = load_settings(write(tmp_path, text))
    defaults = Settings()
    shown = yaml.safe_load(text)
    assert set(shown) == set(Settings.model_fields)
    for section in ("server", "queue", "fleet", "store", "tuning", "recording", "embedded"):
        assert getattr(settings, section) == getattr(defaults, section)
        assert set(shown[section]) == set(type(getattr(settings, section)).model_fields)
    assert set(shown["engines"][0]) == set(type(settings.engines[0]).model_fields)
    assert set(shown["tenants"][0]) == set(type(settings.tenants[0]).model_fields)
