"""Reads the documents of a corpus directory and chooses which are held out.

A corpus is a directory of *.txt (documents, each ended by a line <|endoftext|>) and *.jsonl
(dialogs, one a line: {"messages": [{"role", "content"}]}), plain or .xz.
"""

import json
import lzma
import pathlib
import zlib

END = '<|endoftext|>'
ROLES = {'user': '<|user|>', 'assistant': '<|assistant|>'}


def open_text(path):
    if path.suffix == '.xz':
        return lzma.open(path, 'rt', encoding='utf-8')
    return open(path, encoding='utf-8')


def files(directory, suffix):
    root = pathlib.Path(directory)
    return sorted([*root.glob(f'*{suffix}'), *root.glob(f'*{suffix}.xz')])


def texts(directory):
    """The documents of every *.txt."""
    for path in files(directory, '.txt'):
        lines = []
        with open_text(path) as file:
            for line in file:
                if line.rstrip('\n') == END:
                    yield ''.join(lines).strip()
                    lines = []
                else:
                    lines.append(line)
        if ''.join(lines).strip():
            yield ''.join(lines).strip()


def dialogs(directory):
    """The dialogs of every *.jsonl, as the chat template of export.py writes them."""
    for path in files(directory, '.jsonl'):
        with open_text(path) as file:
            for line in file:
                messages = json.loads(line)['messages']
                yield ''.join(ROLES[m['role']] + m['content'].strip() for m in messages)


def is_held_out(document, share):
    """Depends only on the text: equal documents are on the same side, in any order."""
    return zlib.crc32(document.encode()) < share * 2**32
