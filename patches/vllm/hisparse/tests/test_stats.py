"""From the worker's report to the log and to Prometheus, through the engine's own classes."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from hisparse_engine import config

from graftwork.harness.isolate import load_function

LOGGERS = "vllm/v1/metrics/loggers.py"


@pytest.fixture
def stats(vllm):
    return vllm.hot("stats")


def report(stats, hits=6, misses=2):
    gib = 2**30
    return stats.HotKVStats(hits, misses, misses * gib, 3 * gib, 100 * gib, 0)


def test_reports_are_added_up_until_a_line_is_written(stats):
    log, lines = stats.HotKVLog(), []
    log.observe(None)
    log.observe(report(stats))
    log.observe(report(stats, hits=3, misses=1))
    log.log(lambda text, *values: lines.append(text % values), usage=0.5)
    log.log(lambda text, *values: lines.append(text % values), usage=0.5)
    assert lines == [
        "HiSparse: hit rate: 75.0%, copied: 3.00 GiB, host pool: 50.0 of 100.0 GiB, hot buffers: 3.0 GiB",
    ]
    assert stats.HotKVStats().hit_rate == 0


def test_the_engine_logs_what_it_was_told(stats, engine_tree):
    lines = []
    logger = MagicMock()
    logger.info = lambda text, *values: lines.append(text % values)
    names = {"logger": logger, "envs": SimpleNamespace(VLLM_COMPUTE_NANS_IN_LOGITS=False)}
    me = MagicMock()
    me.aggregated, me.cudagraph_logging, me.engine_is_idle = False, None, False
    me.log_prefix, me._enable_perf_stats = "Engine 000: ", lambda: False
    me.last_prompt_throughput = me.last_generation_throughput = 1.0
    me.num_preemptions = 0
    me.connector_prefix_caching_metrics.empty = me.mm_caching_metrics.empty = True
    me.prefix_caching_metrics.hit_rate = 0.0
    me.hot_kv_log = stats.HotKVLog()
    told = MagicMock(connector_prefix_cache_stats=None, spec_decoding_stats=None, kv_connector_stats=None)
    told.cudagraph_stats = told.perf_stats = None
    told.num_running_reqs = told.num_waiting_reqs = told.num_skipped_waiting_reqs = 0
    told.kv_cache_usage, told.hot_kv_stats = 0.25, report(stats)
    load_function(engine_tree / LOGGERS, "LoggingStatLogger.record", names)(me, told, None)
    load_function(engine_tree / LOGGERS, "LoggingStatLogger.log", names)(me)
    assert any("hit rate: 75.0%, copied: 2.00 GiB, host pool: 25.0 of 100.0 GiB" in line for line in lines)


class Metric:
    def __init__(self, name, documentation, labelnames, multiprocess_mode=None):
        self.name, self.labelnames, self.mode = name, labelnames, multiprocess_mode
        made[name] = self
        self.values: dict[tuple, float] = {}

    def labels(self, *values):
        def inc(amount):
            self.values[values] = self.values.get(values, 0) + amount

        return SimpleNamespace(inc=inc, set=lambda value: self.values.update({values: value}))


made: dict[str, Metric] = {}


def test_prometheus(stats):
    made.clear()
    one = stats.HotKVProm(
        config({"host_pool_gib": 1}), ["model", "engine"], {0: ["m", "0"], 1: ["m", "1"]}, Metric, Metric
    )
    one.observe(None, 0)
    one.observe(report(stats), 0)
    one.observe(report(stats), 0)
    one.observe(report(stats), 1)
    assert made["vllm:hisparse_hits"].values == {("m", "0"): 12, ("m", "1"): 6}
    assert made["vllm:hisparse_copied_bytes"].values[("m", "0")] == 4 * 2**30
    assert made["vllm:hisparse_pool_bytes"].values[("m", "1")] == 100 * 2**30
    assert made["vllm:hisparse_hot_bytes"].mode == "mostrecent" and made["vllm:hisparse_hits"].mode is None


def test_an_engine_without_it_has_no_metrics(stats):
    made.clear()
    stats.HotKVProm(config(None), ["engine"], {0: ["0"]}, Metric, Metric).observe(report(stats), 0)
    assert not made
