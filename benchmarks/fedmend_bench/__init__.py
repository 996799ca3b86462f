"""Benchmarks: paper tables and speed, ours beside the reference, as a table and as JSON.

A benchmark is a module with ``NAME``, ``HELP`` and ``run(quick, **options) -> BenchResult``.
It is listed when its module is there, and imported only when it is run.
"""

from __future__ import annotations

from fedmend_bench.harness import Bar, BenchResult, available, run_bench

__all__ = ["Bar", "BenchResult", "available", "run_bench"]
