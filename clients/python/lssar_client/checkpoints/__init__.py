"""Checkpoints of other programs to directories that lssar-server loads, and back.

    python3 -m lssar_client.checkpoints import SOURCE --out DIR

The commands are in command.py. They need PyTorch (`pip install 'lssar-client[import]'`); the client
of the server does not.
"""
