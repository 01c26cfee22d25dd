"""Checkpoints of other programs to directories that lssar-server loads, and back.

    python3 -m lssar.checkpoints import SOURCE --out DIR

The commands are in command.py. They need numpy and gguf (the extra [import]), .pt files
PyTorch too ([import-torch]); the client of the server needs neither.
"""
