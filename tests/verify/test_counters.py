import pytest

from kvserving_operator.verify import counters

TEXT = """\
# HELP vllm:nixl_bytes_transferred Histogram of bytes transferred per NIXL KV Cache transfers.
# TYPE vllm:nixl_bytes_transferred histogram
vllm:nixl_bytes_transferred_bucket{engine="0",le="+Inf",model_name="tiny"} 2.0
vllm:nixl_bytes_transferred_count{engine="0",model_name="tiny"} 2.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="tiny"} 5.24288e+06
vllm:nixl_bytes_transferred_bucket{engine="1",le="+Inf",model_name="tiny"} 1.0
vllm:nixl_bytes_transferred_count{engine="1",model_name="tiny"} 1.0
vllm:nixl_bytes_transferred_sum{engine="1",model_name="tiny"} 1000.0
# HELP vllm:nixl_num_failed_transfers_total Number of failed NIXL KV Cache transfers.
# TYPE vllm:nixl_num_failed_transfers_total counter
vllm:nixl_num_failed_transfers_total{engine="0",model_name="tiny"} 1.0
# HELP vllm:external_prefix_cache_hits_total External prefix cache hits.
# TYPE vllm:external_prefix_cache_hits_total counter
vllm:external_prefix_cache_hits_total{engine="0",model_name="tiny"} 1023.0
# HELP vllm:external_prefix_cache_queries_total External prefix cache queries.
# TYPE vllm:external_prefix_cache_queries_total counter
vllm:external_prefix_cache_queries_total{engine="0",model_name="tiny"} 1024.0
# HELP kvserving:guard_refused_total Transfer parameters that were removed.
# TYPE kvserving:guard_refused_total counter
kvserving:guard_refused_total{reason="unsigned"} 3.0
kvserving:guard_refused_total{reason="malformed"} 0.0
# HELP kvserving:receipts_total Receipts given to probes.
# TYPE kvserving:receipts_total counter
kvserving:receipts_total{engine="0",model_name="tiny"} 4.0
"""


def test_series_of_all_ranks_are_summed() -> None:
    found = counters.parse(TEXT)
    assert found.transferred_bytes == 5_243_880
    assert found.transfers == 3
    assert found.failed_transfers == 1
    assert (found.external_hits, found.external_queries) == (1023, 1024)
    assert found.refused == {"unsigned": 3, "malformed": 0}
    assert found.receipts == 4
    assert found.connector


def test_an_engine_with_the_guard_alone_has_no_connector() -> None:
    assert not counters.parse(TEXT.partition("# HELP kvserving:receipts")[0]).connector


def test_growth_is_counted_per_counter_and_reason() -> None:
    before = counters.parse(TEXT)
    later = counters.parse(TEXT.replace('"unsigned"} 3.0', '"unsigned"} 5.0').replace("1000.0", "1500.0"))
    grown = later.since(before)
    assert grown.transferred_bytes == 500
    assert grown.transfers == 0
    assert grown.refused == {"unsigned": 2}


def test_a_restarted_engine_counts_from_zero() -> None:
    before = counters.parse(TEXT)
    assert counters.Counters(transferred_bytes=7, connector=True).since(before).transferred_bytes == 7


def test_other_text_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"(?i)invalid|could not"):
        counters.parse("<html>not metrics</html>")
