"""Puts the recipe's modules on the path; names the test corpus."""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
CORPUS = FOLDER / 'corpus'
sys.path.insert(0, str(FOLDER.parents[1] / 'models/training'))
