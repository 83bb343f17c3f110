"""The real Prometheus server scrapes a running service: PromQL answers, and alerts fire when they should."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from purgatory import DelayedOperationPurgatory
from purgatory.metrics import PurgatoryCollector, register, serve
from tests.support import Waiting
from tests.support.programs import ended
from tests.support.served import free_port
from timer import InlineExecutor, SystemTimer, SystemTimerReaper

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PATIENCE_S = 60


if not shutil.which("prometheus") and os.environ.get("CI") != "true":
    pytest.skip("prometheus is not installed: run `make programs`", allow_module_level=True)


def eventually(condition):
    """Wait until ``condition()`` holds. False if it never does. Slowly, because constant requests slow the server
    down.
    """
    give_up = time.monotonic() + PATIENCE_S
    while not (held := condition()) and time.monotonic() < give_up:
        time.sleep(0.1)
    return held


def get(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return json.load(answer)


class Prometheus:
    """A running server. Its targets are read from a folder, as a service with many workers would write them."""

    def __init__(self, folder, port):
        self.targets = folder / "targets"
        self.url = f"http://127.0.0.1:{port}"

    def scrape(self, *urls):
        """Scrape these, from now on."""
        targets = [urllib.parse.urlsplit(url).netloc for url in urls]
        draft = self.targets / "draft"
        draft.write_text(json.dumps([{"targets": targets}]), encoding="utf-8")
        draft.rename(self.targets / "test.json")

    def ask(self, promql):
        """The value of each series that the query finds, by labels."""
        answer = get(f"{self.url}/api/v1/query?" + urllib.parse.urlencode({"query": promql}))
        return {tuple(sorted(found["metric"].items())): float(found["value"][1]) for found in answer["data"]["result"]}

    def number(self, promql):
        """The value of the one series that the query finds, or None."""
        return next(iter(self.ask(promql).values()), None)

    def firing(self):
        """The names of the alerts that fire."""
        alerts = get(f"{self.url}/api/v1/alerts")["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """A server with the shipped rules and short times: it scrapes five times per second, and waits one second at
    most.
    """
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "targets").mkdir()
    rules = (DEPLOY / "prometheus" / "purgatory.rules.yml").read_text(encoding="utf-8")
    rules = re.sub(r"for: \d+[sm]", "for: 1s", rules).replace("_seconds > 5", "_seconds > 1")
    (folder / "purgatory.rules.yml").write_text(rules, encoding="utf-8")
    config = f"""
        global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}
        rule_files: [{folder}/purgatory.rules.yml]
        scrape_configs:
          - job_name: service
            file_sd_configs: [{{files: ['{folder}/targets/*.json'], refresh_interval: 1s}}]
    """
    (folder / "prometheus.yml").write_text(textwrap.dedent(config), encoding="utf-8")
    server = Prometheus(folder, free_port())
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={urllib.parse.urlsplit(server.url).netloc}",
            ],
            stdout=log,
            stderr=log,
        )
        try:

            def ready():
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
                with contextlib.suppress(urllib.error.URLError, ConnectionError):
                    return urllib.request.urlopen(f"{server.url}/-/ready", timeout=10).status == 200
                return False

            assert eventually(ready)
            yield server
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def registry():
    made = CollectorRegistry()
    yield made
    for collector in list(made._collector_to_names):
        if isinstance(collector, PurgatoryCollector):
            collector.close()


def test_promql_counts_what_is_parked(prometheus, registry):
    """PromQL answers with the number of operations that this test parked, and with none once they are answered."""
    with DelayedOperationPurgatory("counted") as purgatory, serve(0, registry=registry) as server:
        prometheus.scrape(server.url)
        for number in range(37):
            purgatory.try_complete_else_watch(Waiting(), [number % 5])

        assert eventually(lambda: prometheus.number('purgatory_parked_operations{purgatory="counted"}') == 37)
        for operation in purgatory.operations():
            operation.ready = True
        for key in range(5):
            purgatory.check_and_complete(key)
        completed = 'sum(purgatory_operations_completed_total{purgatory="counted", outcome="satisfied"})'
        assert eventually(lambda: prometheus.number(completed) == 37)
        assert eventually(lambda: prometheus.number('purgatory_parked_operations{purgatory="counted"}') == 0)


def test_quantiles_of_histograms_can_be_asked_for(prometheus, registry):
    """The lateness and the time parked are histograms that ``histogram_quantile`` understands."""
    with (
        DelayedOperationPurgatory("timed") as purgatory,
        serve(0, registry=registry, histograms=True, callbacks=True) as server,
    ):
        prometheus.scrape(server.url)
        for _ in range(20):
            purgatory.try_complete_else_watch(Waiting(20), ["k"])
        late = 'histogram_quantile(0.99, purgatory_expiry_lateness_seconds_bucket{timer="timed"})'
        parked = 'histogram_quantile(0.5, purgatory_time_parked_seconds_bucket{purgatory="timed", outcome="expired"})'

        assert eventually(lambda: 0 < (prometheus.number(late) or 0) < 10)
        assert eventually(lambda: 0.016 < (prometheus.number(parked) or 0) < 10)


def test_stalled_reaper_fires_an_alert(prometheus, registry):
    """A hook that blocks the reaper makes the alert fire. When it lets go, the alert ends."""
    go = threading.Event()
    timer = SystemTimerReaper("reaper", SystemTimer("stalled", executor=InlineExecutor()))
    with timer, serve(0, registry=registry) as server:
        prometheus.scrape(server.url)
        with DelayedOperationPurgatory("blocked", timer=timer) as purgatory:
            try:
                operation = Waiting(complete=lambda _: go.wait(3 * PATIENCE_S))
                purgatory.try_complete_else_watch(operation, ["k"])
                operation.extend(10)  # with so short a delay from the beginning, it might expire on this thread
                purgatory.try_complete_else_watch(Waiting(100), ["k"])

                assert eventually(lambda: "PurgatoryReaperStalled" in prometheus.firing())
                # On a busy machine a scrape may fail, and there is no number until the next.
                overdue = 'purgatory_timer_overdue_seconds{timer="stalled"}'
                assert eventually(lambda: (prometheus.number(overdue) or 0) > 1)
            finally:
                go.set()
            assert eventually(lambda: "PurgatoryReaperStalled" not in prometheus.firing())


def test_workers_are_targets_of_their_own(prometheus, registry):
    """Several processes of one service, each on its own port, are distinguished and can be added up."""
    worker = """
        import sys, time
        from purgatory import DelayedOperation, DelayedOperationPurgatory
        from purgatory.metrics import serve

        class Wait(DelayedOperation):
            def try_complete(self):
                return False

        with DelayedOperationPurgatory("shared-name") as purgatory, serve(0) as server:
            for _ in range(int(sys.argv[1])):
                purgatory.try_complete_else_watch(Wait(600_000), ["k"])
            sys.stderr.write(server.url + "\\n")
            sys.stderr.flush()
            sys.stdin.read()
    """
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(worker), str(number)],
            cwd=DEPLOY.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (3, 4)
    ]
    try:
        prometheus.scrape(*[worker.stderr.readline().strip() for worker in workers])
        parked = 'purgatory_parked_operations{purgatory="shared-name"}'

        assert eventually(lambda: sorted(prometheus.ask(parked).values()) == [3, 4])
        total = f"sum by (purgatory) ({parked})"
        assert eventually(lambda: {(("purgatory", "shared-name"),): 7.0} == prometheus.ask(total))
    finally:
        for worker in workers:
            worker.communicate(timeout=30)


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "purgatory.rules.yml"), ("test", "rules", "purgatory.rules.test.yml")]
)
def test_rules_are_sound(arguments):
    """``promtool`` finds nothing wrong with the alert rules, and each fires when its unit test says so."""
    verdict = ended("promtool", *arguments, cwd=DEPLOY / "prometheus", seconds=60)

    assert 0 == verdict.returncode, verdict.stdout + verdict.stderr


def test_page_is_sound(registry):
    """``promtool check metrics`` has nothing to say about the whole page: names, units, types and help."""
    register(registry, histograms=True, callbacks=True)
    with DelayedOperationPurgatory("fetch", max_parked=5) as fetch:
        fetch.try_complete_else_watch(Waiting(), ["k"])
        verdict = subprocess.run(
            ["promtool", "check", "metrics"],
            input=generate_latest(registry),
            capture_output=True,
            check=False,
            timeout=60,
        )

    assert (0, b"", b"") == (verdict.returncode, verdict.stdout, verdict.stderr)


def test_shipped_configuration_is_sound():
    """``promtool`` accepts the example configuration, rules included."""
    command = "promtool", "check", "config", "--syntax-only", "prometheus.yml"
    verdict = ended(*command, cwd=DEPLOY / "prometheus", seconds=60)

    assert 0 == verdict.returncode, verdict.stdout + verdict.stderr


def expressions():
    """Every PromQL expression of the dashboard."""
    board = json.loads((DEPLOY / "grafana" / "purgatory.json").read_text(encoding="utf-8"))
    panels = [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", ()))]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_rules_and_dashboard_ask_for_what_there_is():
    """Every metric that an alert or a panel names is one that the collector describes."""
    families = {family.name: family.type for family in PurgatoryCollector().describe()}
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}
    exported = {name + suffix for name, kind in families.items() for suffix in suffixes[kind]}
    rules = (DEPLOY / "prometheus" / "purgatory.rules.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"\bpurgatory_\w+", "\n".join([rules, *expressions()])))

    assert set() == named - exported
    assert 12 < len(named)


def test_panels_draw_each_line_once():
    """No panel of the dashboard has the same expression twice."""
    board = json.loads((DEPLOY / "grafana" / "purgatory.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        drawn = [target["expr"] for target in panel.get("targets", ())]
        assert len(set(drawn)) == len(drawn), panel["title"]


def test_dashboard_is_understood_by_prometheus(prometheus):
    """Every expression of the Grafana dashboard parses and runs."""
    assert expressions()
    for expression in expressions():
        promql = expression
        for variable, filling in (
            ("$__rate_interval", "1m"),
            ("$job", ".*"),
            ("$instance", ".*"),
            ("$purgatory", ".*"),
        ):
            promql = promql.replace(variable, filling)
        prometheus.ask(promql)
