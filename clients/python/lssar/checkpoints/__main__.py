"""`python3 -m lssar.checkpoints`, which `lssar import` and its siblings run."""

import sys

from lssar.checkpoints.command import main

if __name__ == '__main__':
    sys.exit(main())
