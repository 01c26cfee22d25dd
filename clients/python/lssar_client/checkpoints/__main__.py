"""`python3 -m lssar_client.checkpoints`, which `lssar import` and its siblings run."""

import sys

from lssar_client.checkpoints.command import main

if __name__ == '__main__':
    sys.exit(main())
