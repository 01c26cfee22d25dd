"""Reads the documents of a corpus directory and chooses which are held out.

A corpus is a directory of *.txt (documents, each ended by a line <|endoftext|>) and *.jsonl
(dialogs, one a line: {"messages": [{"role", "content"}]}), plain or .xz. The roles are user and
assistant; heal/ takes each one that the chat template knows.
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


def messages(directory, but=None, roles=None):
    """The messages of each dialog of every *.jsonl. Exits at a line that is none.

    but: a file of the directory that is not read. roles: those that are known; None: any.
    """
    for path in files(directory, '.jsonl'):
        if but is not None and path.resolve() == pathlib.Path(but).resolve():
            continue
        with open_text(path) as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _parse(line, f'{path}:{number}', roles)


def _parse(line, place, roles):
    """The messages of a line. Exits, with its place, where it has none."""
    try:
        found = json.loads(line)['messages']
        is_good = len(found) > 0 and all(
            isinstance(each[field], str) for each in found for field in ('role', 'content'))
    except (ValueError, TypeError, KeyError):
        is_good = False
    if not is_good:
        raise SystemExit(f'{place}: must be {{"messages": [{{"role", "content"}}]}} with texts')
    for each in found:
        if roles is not None and each['role'] not in roles:
            raise SystemExit(f'{place}: the role {each["role"]!r} must be one of '
                             + ', '.join(roles))
    return found


def dialogs(directory):
    """The dialogs of every *.jsonl, as the chat template of export.py writes them."""
    for dialog in messages(directory, roles=ROLES):
        yield ''.join(ROLES[each['role']] + each['content'].strip() for each in dialog)


def is_held_out(document, share):
    """Depends only on the text: equal documents are on the same side, in any order."""
    return zlib.crc32(document.encode()) < share * 2**32
