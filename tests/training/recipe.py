"""The recipe's modules and the tests' corpus, for the tests of this folder."""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
CORPUS = FOLDER / 'corpus'
sys.path.insert(0, str(FOLDER.parents[1] / 'models/training'))
