"""Generates the stubs of lssar.v1 before setuptools collects the packages; all else stands in
pyproject.toml."""

import os
import sys

import setuptools

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import generate_stubs  # noqa: E402

generate_stubs.generate(HERE)
setuptools.setup()
