"""What Compose, the image and the scrape configuration say of each other holds together."""

from __future__ import annotations

import json
import re
import shlex
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.config import Settings, load_settings
from dispatcher.emulator.settings import EmulatorSettings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROFILES = {"gpu": "gateway", "emulated": "gateway-emulated"}
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())


def defaulted(text: str) -> str:
    """A Compose value with its variables at their defaults."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def seconds(duration: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([smh])", duration).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60, "h": 3600}[unit]


def in_profile(profile: str) -> dict[str, dict[str, Any]]:
    return {name: s for name, s in SERVICES.items() if profile in s["profiles"]}


def names_on_the_network(profile: str) -> set[str]:
    names = set()
    for name, service in in_profile(profile).items():
        names |= {name, *service.get("networks", {}).get("default", {}).get("aliases", [])}
    return names


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Where in the container: what of the host, or which volume."""
    pairs = (volume.split(":") for volume in service.get("volumes", []))
    return {parts[1]: parts[0] for parts in pairs}


def settings_of(profile: str) -> Settings:
    service = SERVICES[PROFILES[profile]]
    inside = service["command"][service["command"].index("--config") + 1]
    return load_settings(ROOT / mounts(service)[inside])


def test_every_service_has_a_profile_and_what_it_depends_on() -> None:
    assert {profile for s in SERVICES.values() for profile in s["profiles"]} == set(PROFILES)
    for profile in PROFILES:
        services = in_profile(profile)
        for service in services.values():
            assert set(service.get("depends_on", {})) <= set(services)


def test_what_is_mounted_exists() -> None:
    for service in SERVICES.values():
        for source in mounts(service).values():
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source


def test_foreign_images_are_pinned_and_ours_is_never_pulled() -> None:
    for name, service in SERVICES.items():
        image, _, tag = service["image"].rpartition(":")
        if image == "headway":
            assert service["pull_policy"] == "build", name
        else:
            assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), f"{name}: {service['image']}"


def test_ports_are_published_on_loopback_unless_told_otherwise() -> None:
    published = [p for service in SERVICES.values() for p in service.get("ports", [])]
    assert published
    assert all(defaulted(port).startswith("127.0.0.1:") for port in published)
    assert not any("ports" in s for name, s in SERVICES.items() if re.match("vllm|emulated", name))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_gateway_finds_its_engines_and_prometheus_finds_all(profile: str) -> None:
    settings, names = settings_of(profile), names_on_the_network(profile)
    engines = {urlsplit(engine.url).netloc: engine.id for engine in settings.engines}
    assert {address.split(":")[0] for address in engines} <= names
    jobs = {job["job_name"]: job for job in PROMETHEUS["scrape_configs"]}
    assert jobs["headway"]["static_configs"] == [{"targets": [f"gateway:{settings.server.port}"]}]
    assert "gateway" in names
    scraped = {
        target: entry["labels"]["instance"]
        for entry in jobs["engines"]["static_configs"]
        for target in entry["targets"]
    }
    # by the id that the gateway's own metrics carry
    assert scraped == engines


def test_prometheus_keeps_the_engine_a_series_speaks_of() -> None:
    [job] = [job for job in PROMETHEUS["scrape_configs"] if job["job_name"] == "headway"]
    assert job["honor_labels"] is True
    for file in PROMETHEUS["rule_files"]:
        assert (DEPLOY / "prometheus" / file).is_file()


def test_grafana_is_provisioned_from_what_is_mounted() -> None:
    inside = mounts(SERVICES["grafana"])
    provisioning = DEPLOY / "grafana/provisioning"
    [source] = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())[
        "datasources"
    ]
    assert urlsplit(source["url"]).netloc == "prometheus:9090"
    assert source["jsonData"]["timeInterval"] == PROMETHEUS["global"]["scrape_interval"]
    [provider] = yaml.safe_load((provisioning / "dashboards/headway.yml").read_text())["providers"]
    folder = ROOT / inside[provider["options"]["path"]]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    dashboard = json.loads((folder / Path(home).name).read_text())
    [variable] = [v for v in dashboard["templating"]["list"] if v["type"] == "datasource"]
    assert variable["current"]["value"] == source["uid"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_gateway_has_time_to_finish_before_it_is_killed(profile: str) -> None:
    service, settings = SERVICES[PROFILES[profile]], settings_of(profile)
    assert seconds(service["stop_grace_period"]) > settings.server.shutdown_grace_s
    assert settings.server.host == "0.0.0.0"  # else the published port leads nowhere
    assert settings.store.path is not None
    assert str(Path(settings.store.path).parent) in mounts(service)


def test_vllm_runs_as_the_gateway_needs_it() -> None:
    taken: list[str] = []
    for name in ("vllm-0", "vllm-1"):
        service = SERVICES[name]
        flags = dict(flag.partition("=")[::2] for flag in service["command"][1:])
        assert flags["--scheduling-policy"] == "priority"
        assert {"--enable-prompt-tokens-details", "--enable-request-id-headers"} <= set(flags)
        assert 0 < int(flags["--shutdown-timeout"]) < seconds(service["stop_grace_period"])
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert device["capabilities"] == ["gpu"]
        taken += device["device_ids"]
    assert len(set(map(defaulted, taken))) == 2


@pytest.mark.parametrize("file", ["gateway.yaml", "gateway-emulated.yaml"])
def test_the_command_line_finds_the_configuration_valid(file: str) -> None:
    result = CliRunner().invoke(app, ["check-config", str(DEPLOY / file)])
    assert result.exit_code == 0, result.output


def test_emulated_engines_are_started_by_options_that_exist() -> None:
    for name in ("emulated-0", "emulated-1"):
        command, *options = SERVICES[name]["command"]
        emulate = get_command(app).commands[command]  # type: ignore[attr-defined]
        context = emulate.make_context("emulate", options)
        assert context.params["host"] == "0.0.0.0"
        assert context.params["port"] == 8000
        EmulatorSettings.model_validate(context.params)


# --- the image ---

INSTRUCTIONS = [
    line.split(maxsplit=1)
    for line in re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text()).splitlines()
    if line and not line.startswith("#")
]


def last(instruction: str) -> str:
    return [rest for name, rest in INSTRUCTIONS if name == instruction][-1]


def copied() -> list[str]:
    """Paths of the project that go into the image or its build."""
    out = []
    for name, rest in INSTRUCTIONS:
        words = shlex.split(rest)
        if name == "COPY" and not words[0].startswith("--from"):
            out += words[:-1]
    return out


def test_the_image_gets_all_packages_and_nothing_that_is_ignored() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert set(copied()) == let_through
    assert all((ROOT / path).exists() for path in let_through)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    metadata = {project["project"]["readme"], *project["project"]["license-files"]}
    assert {*wheel["packages"], *metadata} <= let_through


def test_the_image_is_pinned_and_runs_without_root() -> None:
    [base] = [rest for name, rest in INSTRUCTIONS if name == "ARG"]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+", base)
    stages = [rest for name, rest in INSTRUCTIONS if name == "FROM"]
    assert all(stage.split()[0] == "${PYTHON_IMAGE}" for stage in stages)
    assert int(last("USER").split(":")[0]) > 0
    # nothing is run as root after that
    names = [name for name, _ in INSTRUCTIONS]
    assert "RUN" not in names[len(names) - names[::-1].index("USER") :]


def test_dependencies_are_installed_by_hash() -> None:
    installs = [rest for name, rest in INSTRUCTIONS if name == "RUN" and " install " in rest]
    [lock] = [rest for rest in installs if "requirements/run.lock" in rest]
    assert "--require-hashes" in lock
    [project] = [rest for rest in installs if rest.rstrip().endswith(" .")]
    assert "--no-deps" in project
    assert "--no-build-isolation" in project


def test_the_image_checks_its_health_where_it_listens() -> None:
    command = json.loads(last("HEALTHCHECK").split("CMD", 1)[1])
    port = urlsplit(command[-1]).port
    assert urlsplit(command[-1]).path == "/health"
    assert port == int(last("EXPOSE")) == Settings().server.port
    for profile in PROFILES:
        assert settings_of(profile).server.port == port


# --- the health check ---


@pytest.fixture(scope="module")
def healthcheck() -> ModuleType:
    spec = spec_from_file_location("headway_healthcheck", DEPLOY / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Server(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def test_healthcheck_tells_well_from_ill_and_gone(healthcheck: ModuleType) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Server)
    url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        assert healthcheck.main([f"{url}/health"]) == 0
        assert healthcheck.main([f"{url}/other"]) == 1
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert healthcheck.main([f"{url}/health"]) == 1


def test_healthcheck_refuses_what_is_no_url(healthcheck: ModuleType) -> None:
    assert healthcheck.main([]) == 2
    assert healthcheck.main(["localhost:8080"]) == 2


def test_healthcheck_needs_nothing_but_the_standard_library(healthcheck: ModuleType) -> None:
    imported = re.findall(
        r"^(?:from|import) (\w+)", Path(healthcheck.__file__ or "").read_text(), re.M
    )
    assert set(imported) <= sys.stdlib_module_names


# --- the page ---

PAGE = (ROOT / "docs/deploy.md").read_text()


def test_the_page_names_every_variable_with_its_default() -> None:
    compose = (ROOT / "docker-compose.yml").read_text()
    variables = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", compose))
    passed_on = re.findall(r"^\s+(\w+):(?:\s+#.*)?$", compose, re.MULTILINE)
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for name, default in variables.items():
        [row] = [row for row in rows if f"`{name}`" in row]
        assert f"`{default}`" in row, name
    for name in (name for name in passed_on if name.isupper()):
        assert any(f"`{name}`" in row for row in rows), name


def test_the_page_names_every_vllm_flag_that_is_set_for_the_gateway() -> None:
    model_and_address = {"--host", "--port", "--max-model-len"}
    for flag in SERVICES["vllm-0"]["command"][1:]:
        name = flag.split("=")[0]
        assert name in model_and_address or f"`{flag.replace('=', ' ')}`" in PAGE, flag


def test_the_page_names_files_and_alerts_that_exist() -> None:
    for path in set(re.findall(r"\bdeploy/[\w./-]+\w", PAGE)):
        assert (ROOT / path).exists(), path
    rules = (DEPLOY / "prometheus/rules.yml").read_text()
    alerts = set(re.findall(r"`(Headway[A-Z]\w+)`", PAGE))
    assert alerts
    assert all(f"alert: {alert}\n" in rules for alert in alerts)


def test_the_unit_gives_the_gateway_time_to_finish() -> None:
    unit = dict(
        line.split("=", 1)
        for line in (DEPLOY / "headway.service").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    grace_s = load_settings(DEPLOY / "gateway.yaml").server.shutdown_grace_s
    assert int(unit["TimeoutStopSec"]) > grace_s
    assert unit["KillMode"] == "mixed"
    assert unit["WorkingDirectory"] == f"/var/lib/{unit['StateDirectory']}"
