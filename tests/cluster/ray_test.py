"""Runs ray_cases.py in an environment with the real Ray from PyPI."""

import os
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / 'python'))

import environments  # noqa: E402

if __name__ == '__main__':
    try:
        python = str(environments.environment('ray'))
    except unittest.SkipTest as reason:
        print(reason)
        raise SystemExit(0) from None
    # Ray gives its workers a low priority, which a busy machine would starve.
    os.execve(python, [python, str(HERE / 'ray_cases.py'), *sys.argv[1:]],
              environments.isolated(RAY_worker_niceness='0', RAY_DEDUP_LOGS='0'))
