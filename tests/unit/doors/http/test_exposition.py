"""Prometheus's text format: lines by metric, histograms that add up."""

from __future__ import annotations

from penstock.doors.http.exposition import CACHE_HITS, COMMIT, CONNECTIONS, METRICS, Page
from penstock.runtime.histogram import Histogram

MS_NS = 1_000_000


def test_the_samples_of_a_metric_stand_together() -> None:
    page = Page()
    page.tell(CONNECTIONS, 2, '{door="nsq"}')
    page.tell(CACHE_HITS, 7)
    page.tell(CONNECTIONS, 1, '{door="http"}')
    assert "".join(page.texts()) == (
        "# HELP penstock_connections Clients that are connected, by door.\n"
        "# TYPE penstock_connections gauge\n"
        'penstock_connections{door="nsq"} 2\n'
        'penstock_connections{door="http"} 1\n'
        "# HELP penstock_cache_hits_total Blocks that were wanted and in memory.\n"
        "# TYPE penstock_cache_hits_total counter\n"
        "penstock_cache_hits_total 7\n"
    )


def test_a_histogram_counts_all_that_is_below_a_bound() -> None:
    histogram = Histogram([MS_NS, 10 * MS_NS])
    for ms in (1, 2, 10, 11):
        histogram.note(ms * MS_NS)
    page = Page()
    page.tell_histogram(COMMIT, histogram)
    assert page.lines[COMMIT.name] == [
        'penstock_commit_seconds_bucket{le="0.001"} 1\n',
        'penstock_commit_seconds_bucket{le="0.01"} 3\n',
        'penstock_commit_seconds_bucket{le="+Inf"} 4\n',
        "penstock_commit_seconds_sum 0.024\npenstock_commit_seconds_count 4\n",
    ]


def test_names_are_as_prometheus_wants_them() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for name, kind, text in METRICS:
        assert name.endswith("_total") == (kind == "counter"), name
        assert text.isprintable()
        assert "\\" not in text
