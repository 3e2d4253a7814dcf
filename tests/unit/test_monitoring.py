"""deploy/prometheus and deploy/grafana against what the services really show, without a Prometheus."""

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from reference.metrics import SECTIONS, SUFFIXES, reference

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
RULES = PROMETHEUS / "alerts.yml"
RUNBOOK = "docs/alerts.md"
PROMTOOL = shutil.which("promtool")

OF_TARGETS = {"job", "instance"}
"""Labels that Prometheus itself puts on everything that it scrapes."""
OF_COUNTERS = {"rate", "increase", "irate"}
SEVERITIES = {"critical", "warning"}
COLUMNS = 24

Rule = dict[str, Any]
Panel = dict[str, Any]


def known() -> dict[str, tuple[str, set[str]]]:
    """By the names that queries use: what kind it is, and its labels."""
    found = {"up": ("gauge", set(OF_TARGETS))}
    for section in reference():
        for metric in section.metrics:
            for sample in metric.samples:
                kind = "counter" if metric.kind == "histogram" else metric.kind
                labels = {*metric.labels, *OF_TARGETS, *(["le"] if sample.endswith("_bucket") else [])}
                found[sample] = kind, labels
    return found


KNOWN = known()


def nodes(expression: Any) -> list[Any]:
    found: list[Any] = []
    promql.walk(expression, found.append)
    return found


def selectors(expression: Any) -> list[Any]:
    return [node for node in nodes(expression) if isinstance(node, promql.VectorSelector)]


def kind_of(selector: Any) -> str:
    return KNOWN[selector.name][0] if selector.name in KNOWN else ""


def complaints(query: str) -> list[str]:
    """What is wrong with a query: it does not parse, or names what no service shows."""
    try:
        expression = promql.parse(query)
    except ValueError as error:
        return [f"it does not parse: {error}"]
    found = []
    for selector in selectors(expression):
        if selector.name not in KNOWN:
            found.append(f"no service shows {selector.name}")
            continue
        asked = [matcher.name for matcher in selector.matchers.matchers]
        found += [f"{selector.name} has no label {name}" for name in asked if name not in KNOWN[selector.name][1]]
    for node in nodes(expression):
        found += _of_call(node) if isinstance(node, promql.Call) else []
        found += _of_aggregate(node) if isinstance(node, promql.AggregateExpr) else []
    return found


def _of_call(call: Any) -> list[str]:
    ranges = [argument.vector_selector for argument in call.args if isinstance(argument, promql.MatrixSelector)]
    gauges = [selector.name for selector in ranges if kind_of(selector) == "gauge"]
    found = [f"{call.func.name} of {name}, which is a gauge" for name in gauges if call.func.name in OF_COUNTERS]
    if call.func.name == "histogram_quantile":
        [buckets] = [argument for argument in call.args if isinstance(argument, promql.AggregateExpr)]
        if buckets.modifier is None or "le" not in buckets.modifier.labels:
            found.append("a quantile of buckets that are not grouped by le")
    return found


def _of_aggregate(aggregate: Any) -> list[str]:
    """Only labels that what is aggregated has; those of another aggregate are what that one keeps."""
    if aggregate.modifier is None:
        return []
    inside = aggregate.expr
    there: set[str] = set()
    for selector in selectors(inside):
        there |= KNOWN.get(selector.name, ("", set()))[1]
    return [f"nothing in it has the label {label}" for label in aggregate.modifier.labels if label not in there]


def shows_a_counter_raw(query: str) -> list[str]:
    """A counter itself says since when its process runs, and little else."""
    found = nodes(promql.parse(query))
    # The selector of a range follows it.
    raw = [
        node
        for before, node in zip([None, *found], found, strict=False)
        if not isinstance(before, promql.MatrixSelector)
    ]
    return [
        f"{node.name} without a rate"
        for node in raw
        if isinstance(node, promql.VectorSelector) and kind_of(node) == "counter"
    ]


# Alerts


def rules() -> list[Rule]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def anchors() -> list[str]:
    """Of the sections about alerts, as GitHub makes them."""
    return [title.lower() for title in re.findall(r"^### (\w+)$", (ROOT / RUNBOOK).read_text(), re.MULTILINE)]


def rule_complaints(rule: Rule) -> list[str]:
    found = [*complaints(rule["expr"]), *shows_a_counter_raw(rule["expr"])]
    if rule.get("labels", {}).get("severity") not in SEVERITIES:
        found.append("its severity is none of ours")
    annotations = rule.get("annotations", {})
    found += [f"it has no {name}" for name in ("summary", "description", "runbook") if not annotations.get(name)]
    page, _, anchor = annotations.get("runbook", "").partition("#")
    if page != RUNBOOK or anchor not in anchors() or anchor != rule["alert"].lower():
        found.append("its runbook is another one's, or none")
    shown = set(re.findall(r"\$labels\.(\w+)", " ".join(map(str, annotations.values()))))
    return found + [f"it shows the label {name}, which it has not" for name in shown - labels_of(rule["expr"])]


def labels_of(query: str) -> set[str]:
    """Those that the result has, as far as the outermost aggregates say."""
    expression = promql.parse(query)
    while isinstance(expression, promql.BinaryExpr | promql.ParenExpr):
        expression = expression.expr if isinstance(expression, promql.ParenExpr) else expression.lhs
    if isinstance(expression, promql.Call) and expression.func.name == "histogram_quantile":
        return labels_of(expression.args[1].prettify()) - {"le"}
    if isinstance(expression, promql.AggregateExpr):
        return set(expression.modifier.labels) if expression.modifier is not None else set()
    found = [KNOWN[selector.name][1] for selector in selectors(expression) if selector.name in KNOWN]
    return set.union(*found) if found else set()


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_is_made_of_what_there_is_and_says_what_to_do(rule: Rule) -> None:
    assert rule_complaints(rule) == []


def test_every_alert_has_one_section_and_every_section_an_alert() -> None:
    names = [rule["alert"].lower() for rule in rules()]
    assert len(names) > 30 and len(set(names)) == len(names)
    assert sorted(names) == sorted(anchors())


def test_what_the_runbook_names_exists() -> None:
    text = (ROOT / RUNBOOK).read_text()
    settings = (ROOT / ".env.example").read_text()
    missing = [name for name in re.findall(r"THREADLOG_[A-Z_]+", text) if f"{name.rstrip('_')}=" not in settings]
    assert missing == []
    sources = "\n".join(path.read_text() for path in (ROOT / "services").rglob("*.py"))
    lines = re.findall(r"lines? `(\w+)`", text) + re.findall(r"`(\w+)` of its last", text)
    assert lines and [line for line in lines if f'"{line}"' not in sources] == []
    operations = (ROOT / "docs" / "operations.md").read_text()
    sections = {
        re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", operations, re.MULTILINE)
    }
    assert set(re.findall(r"operations\.md#([\w-]+)", text)) <= sections


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"expr": "max(threadlog_nothing) > 1"}, "no service shows threadlog_nothing"),
        ({"expr": "max(threadlog_stuck_threads) by (tenant) > 1"}, "label tenant"),
        ({"expr": 'max(threadlog_stuck_threads{thread="t"}) > 1'}, "no label thread"),
        ({"expr": "max(threadlog_stuck_threads > 1"}, "does not parse"),
        ({"expr": "rate(threadlog_open_turns[5m]) > 1"}, "a gauge"),
        ({"expr": "threadlog_projector_retries_total > 1"}, "without a rate"),
        (
            {"expr": "histogram_quantile(0.9, sum(rate(threadlog_projector_delay_seconds_bucket[5m]))) > 1"},
            "grouped by le",
        ),
        ({"labels": {"severity": "page"}}, "severity"),
        ({"annotations": {"summary": "x", "description": "y"}}, "no runbook"),
        ({"annotations": {"summary": "x", "description": "y", "runbook": f"{RUNBOOK}#nothing"}}, "another one's"),
    ],
)
def test_a_slip_in_a_rule_is_found(change: Rule, complaint: str) -> None:
    good = next(rule for rule in rules() if rule["alert"] == "ThreadlogStuckThreads")
    assert rule_complaints(good) == []
    found = complaints(change["expr"]) if complaint == "does not parse" else rule_complaints({**good, **change})
    assert complaint in " ".join(found)


def test_a_label_that_the_result_has_not_is_found() -> None:
    good = next(rule for rule in rules() if rule["alert"] == "ThreadlogStuckThreads")
    annotations = {**good["annotations"], "summary": "{{ $labels.instance }}"}
    assert "label instance" in " ".join(rule_complaints({**good, "annotations": annotations}))


# Promtool


def promtool(*arguments: str, told: str = "") -> str:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], cwd=PROMETHEUS, input=told, capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not on the PATH; Debian has it in the package prometheus"
)


@needs_promtool
def test_prometheus_takes_the_configuration_and_the_rules() -> None:
    assert promtool("check", "config", "prometheus.yml") == ""
    assert promtool("check", "rules", "alerts.yml") == ""


@needs_promtool
def test_prometheus_has_no_complaint_about_names_and_units() -> None:
    registry = CollectorRegistry()
    for _, _, register in SECTIONS:
        register(registry)
    assert promtool("check", "metrics", told=generate_latest(registry).decode()) == ""
    Gauge("threadlog_delay_milliseconds", "A slip.", registry=registry)
    assert "milliseconds" in promtool("check", "metrics", told=generate_latest(registry).decode())


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    assert promtool("test", "rules", "alerts_test.yml") == ""
    shutil.copy(PROMETHEUS / "alerts_test.yml", tmp_path)
    dull = RULES.read_text().replace(
        "max(threadlog_projector_lag_seconds) > 30", "max(threadlog_projector_lag_seconds) > 3e9"
    )
    (tmp_path / "alerts.yml").write_text(dull)
    assert "ThreadlogViewsBehind" in promtool("test", "rules", str(tmp_path / "alerts_test.yml"))


# Dashboards


def panels(dashboard: dict[str, Any]) -> Iterator[Panel]:
    yield from dashboard["panels"]


def plain(query: str) -> str:
    """Without Grafana's variables."""
    return query.replace("$__rate_interval", "5m").replace("$__range", "1h")


def dashboard_complaints(dashboard: dict[str, Any]) -> list[str]:
    found = []
    ids = [panel["id"] for panel in panels(dashboard)]
    if len(set(ids)) < len(ids):
        found.append("two panels have the same id")
    taken: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if taken & cells or at["x"] + at["w"] > COLUMNS:
            found.append(f"{panel['title']} lies on another panel, or beside the page")
        taken |= cells
        if panel["type"] == "row":
            continue
        if panel["datasource"] != source():
            found.append(f"{panel['title']} asks another source")
        if not panel["targets"]:
            found.append(f"{panel['title']} asks nothing")
        for target in panel["targets"]:
            query = plain(target["expr"])
            wrong = complaints(query) or shows_a_counter_raw(query)
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"])) - labels_of(query) if not wrong else set()
            found += [f"{panel['title']}: {each}" for each in wrong]
            found += [f"{panel['title']}: its legend shows {each}, which it has not" for each in shown]
    return found


def source() -> dict[str, str]:
    provisioned = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())
    [only] = provisioned["datasources"]
    return {"type": only["type"], "uid": only["uid"]}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_shows_what_there_is(path: Path) -> None:
    assert dashboard_complaints(json.loads(path.read_text())) == []


def test_dashboards_have_names_of_their_own() -> None:
    found = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert [path.stem for path in DASHBOARDS] == ["ingest", "overview", "projector", "runtime"]
    assert len({each["uid"] for each in found}) == len({each["title"] for each in found}) == len(found)
    titles = (ROOT / RUNBOOK).read_text()
    there = {re.sub(r" and .*", "", each["title"]) for each in found}
    assert set(re.findall(r"\*(threadlog [a-z ]+)\*", titles)) <= there


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda panel: panel.update(id=1), "same id"),
        (lambda panel: panel["gridPos"].update(x=20), "lies on another"),
        (
            lambda panel: panel["targets"][0].update(expr="rate(threadlog_nothing_total[$__rate_interval])"),
            "no service",
        ),
        (lambda panel: panel["targets"][0].update(legendFormat="{{tenant}}"), "legend shows tenant"),
        (lambda panel: panel.update(targets=[]), "asks nothing"),
        (lambda panel: panel.update(datasource={"type": "prometheus", "uid": "x"}), "another source"),
    ],
)
def test_a_slip_in_a_dashboard_is_found(change: Any, complaint: str) -> None:
    dashboard = json.loads((GRAFANA / "dashboards/overview.json").read_text())
    broken = copy.deepcopy(dashboard)
    change(next(panel for panel in broken["panels"] if panel["type"] == "timeseries"))
    assert dashboard_complaints(dashboard) == []
    assert complaint in " ".join(dashboard_complaints(broken))


def test_every_metric_is_shown_or_watched() -> None:
    queries = [rule["expr"] for rule in rules()]
    for path in DASHBOARDS:
        queries += [
            plain(target["expr"])
            for panel in panels(json.loads(path.read_text()))
            for target in panel.get("targets", ())
        ]
    used = {selector.name for query in queries for selector in selectors(promql.parse(query))}
    unused = {
        metric.name
        for section in reference()
        for metric in section.metrics
        if not used & set(metric.samples) and not metric.name.startswith("process_")
    }
    assert unused == set()


# Both in docker-compose.yml


def test_compose_gives_prometheus_and_grafana_their_files() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert "./deploy/prometheus:/etc/prometheus:ro" in compose["prometheus"]["volumes"]
    assert yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["rule_files"] == [RULES.name]
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/threadlog.yml").read_text())["providers"][0]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in compose["grafana"]["volumes"]
    assert "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro" in compose["grafana"]["volumes"]
    [datasource] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert datasource["url"] == "http://prometheus:9090"


def test_every_service_that_runs_is_asked_under_its_own_name() -> None:
    jobs = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    for job in jobs:
        [targets] = [entry["targets"] for entry in job["static_configs"]]
        assert [f"threadlog-{target.partition(':')[0]}" for target in targets] == [job["job_name"]]
    assert {service for section in reference() for service in section.services} == {
        job["job_name"].removeprefix("threadlog-") for job in jobs
    }


def test_kinds_have_the_suffixes_that_queries_use() -> None:
    assert SUFFIXES.keys() == {metric.kind for section in reference() for metric in section.metrics}
