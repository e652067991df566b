"""The example rules for prometheus-adapter, by promtool: right for an engine that works, 0 for one that rests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from tests.chart.charts import ROOT

VALUES = ROOT / "examples" / "scaling" / "prometheus-adapter.yaml"
RULES = yaml.safe_load(VALUES.read_text(encoding="utf-8"))["rules"]["custom"]
SERIES = ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds_bucket")
BUSY, RESTING = 'namespace="prod",pod="busy"', 'namespace="prod",pod="resting"'


def recorded() -> list[dict[str, str]]:
    """Each rule's query for one series, as the adapter would ask it."""
    filled = {"<<.GroupBy>>": "pod", "<<.LabelMatchers>>": 'namespace="prod",pod=~"busy|resting"'}
    made = []
    for rule, series in zip(RULES, SERIES, strict=True):
        query = rule["metricsQuery"].replace("<<.Series>>", series)
        for placeholder, text in filled.items():
            query = query.replace(placeholder, text)
        made.append({"record": f"asked:{series.removeprefix('vllm:')}", "expr": query})
    return made


def test_queries_give_one_number_for_each_pod(promtool: Path, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "adapter", "rules": recorded()}]}))
    waiting, usage, bucket = SERIES
    series = {
        f'{waiting}{{{BUSY},engine="0"}}': "3x20",
        f'{waiting}{{{BUSY},engine="1"}}': "4x20",
        f'{waiting}{{{RESTING},engine="0"}}': "0x20",
        f'{usage}{{{BUSY},engine="0"}}': "0.5x20",
        f'{usage}{{{BUSY},engine="1"}}': "0.7x20",
        f'{usage}{{{RESTING},engine="0"}}': "0x20",
        f'{bucket}{{{BUSY},le="0.5"}}': "0x20",
        f'{bucket}{{{BUSY},le="1"}}': "0+60x20",
        f'{bucket}{{{BUSY},le="+Inf"}}': "0+60x20",
        f'{bucket}{{{RESTING},le="0.5"}}': "7x20",
        f'{bucket}{{{RESTING},le="1"}}': "7x20",
        f'{bucket}{{{RESTING},le="+Inf"}}': "7x20",
    }
    wanted = {
        "num_requests_waiting": (7, 0),
        "kv_cache_usage_perc": (0.6, 0),
        "time_to_first_token_seconds_bucket": (0.975, 0),
    }
    tests = [
        {
            "expr": f"asked:{name}",
            "eval_time": "10m",
            "exp_samples": [
                {"labels": f'asked:{name}{{pod="busy"}}', "value": busy},
                {"labels": f'asked:{name}{{pod="resting"}}', "value": resting},
            ],
        }
        for name, (busy, resting) in wanted.items()
    ]
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    case = {
        "rule_files": ["rules.yaml"],
        "tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": tests}],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(case))
    command = [str(promtool), "test", "rules", str(tmp_path / "test.yaml")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
