"""Writes API.md from the docstrings and comments of the package: api_reference.py [--check].

Reads the sources only, so it needs neither gRPC nor generated code. --check writes nothing and
fails where API.md is not what it would write.
"""

import ast
import io
import os
import sys
import tokenize

import derive_client

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(HERE, 'API.md')
MAX_COLUMNS = 100

SECTIONS = [
    ('In process', ['LLM', 'SamplingParams', 'RequestOutput']),
    ('Clients', ['Client', 'AsyncClient', 'Stream', 'AsyncStream', 'Retry', 'Tls', 'LssarError']),
    ('Arguments', ['Text', 'TokenIds', 'IntArray', 'Prompt', 'Chat', 'Message', 'ScoreItem',
                   'JsonSchema', 'HasJsonSchema']),
    ('Options', ['CallOptions', 'SchedulingOptions', 'AttentionOverride', 'AttentionPower',
                 'AttentionPowerStep', 'Steering', 'SamplingOptions', 'GenerateOptions',
                 'ScoreOptions', 'EmbedOptions', 'AttentionOptions']),
    ('Results', ['Generation', 'Delta', 'Token', 'Started', 'Finished', 'Receipt', 'Usage',
                 'Timings', 'ContinuationScore', 'Embedding', 'HiddenStates', 'Distributions',
                 'Attention', 'RowAttention', 'ServerInfo', 'Limits', 'ServerStats', 'StageTimes',
                 'HeadStatistics']),
]
# Their methods are those of the class named: only the signatures differ.
SAME_METHODS = {'AsyncClient': 'Client', 'AsyncStream': 'Stream'}

HEADER = '''# lssar: Python reference

Generated from the docstrings: `python3 clients/python/api_reference.py`. Do not edit.
'''


class Source:
    """A module: its definitions by name, and its comments by line."""

    def __init__(self, name: str) -> None:
        if name == 'client':
            text = derive_client.derived()
        else:
            with open(os.path.join(HERE, 'lssar', f'{name}.py'), encoding='utf-8') as file:
                text = file.read()
        self.definitions: dict[str, ast.stmt] = {}
        self.docstrings: dict[str, str] = {}
        body = ast.parse(text).body
        for node, following in zip(body, [*body[1:], None]):
            if isinstance(node, (ast.ClassDef, ast.Assign)):
                name = node.name if isinstance(node, ast.ClassDef) else ast.unparse(node.targets[0])
                self.definitions[name] = node
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    self.docstrings[name] = str(following.value.value)
        self.comments = {token.start[0]: token.string.lstrip('# ')
                         for token in tokenize.generate_tokens(io.StringIO(text).readline)
                         if token.type == tokenize.COMMENT}


def clean(text: str) -> str:
    """A docstring as Markdown: indented lines of `Args:` become a list."""
    lines = []
    for line in text.split('\n'):
        if line.startswith('    ') and ':' in line and not line.startswith('     '):
            name, _, rest = line.strip().partition(':')
            lines.append(f'- `{name}`:{rest}')
        elif line.startswith('        '):
            lines.append('  ' + line.strip())
        else:
            lines.append(line)
            if line in ('Args:', 'Attributes:', 'Errors:'):
                lines.append('')
    return '\n'.join(lines)


def short(text: str) -> str:
    """Types without the module that they come from."""
    return text.replace('types.', '').replace('client.', '')


def one_argument(argument: ast.arg, default: ast.expr | None) -> str:
    """An argument with its type and default."""
    text = ast.unparse(argument)
    return text if default is None else f'{text} = {ast.unparse(default)}'


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """The call as it is written in a program, with types."""
    function.args.args = [each for each in function.args.args if each.arg != 'self']
    kind = ast.unparse(function.returns) if function.returns else ''
    returns = f' -> {kind}' if function.name != '__init__' else ''
    is_awaited = isinstance(function, ast.AsyncFunctionDef) and not kind.startswith('AsyncIterator')
    call = f'{"await " if is_awaited else ""}{name}('
    text = short(f'{call}{ast.unparse(function.args)}){returns}')
    if len(text) <= MAX_COLUMNS:
        return text
    arguments = function.args
    positional = list(zip(arguments.args, [None] * (len(arguments.args) - len(arguments.defaults))
                          + arguments.defaults))
    keywords = list(zip(arguments.kwonlyargs, arguments.kw_defaults))
    parts = [one_argument(*each) for each in positional] + ['*'] * bool(keywords)
    parts += [one_argument(*each) for each in keywords]
    if arguments.kwarg:
        parts.append('**' + ast.unparse(arguments.kwarg))
    lines = ',\n'.join(f'    {part}' for part in parts)
    return short(f'{call}\n{lines}){returns}')


def is_property(node: ast.stmt) -> bool:
    """True for a method that is read as an attribute."""
    return isinstance(node, ast.FunctionDef) and any(
        ast.unparse(decorator) == 'property' for decorator in node.decorator_list)


def fields(node: ast.ClassDef, source: Source) -> list[str]:
    """A table of the class's annotated attributes and properties."""
    rows = []
    for item in node.body:
        if isinstance(item, ast.AnnAssign):
            default = f' = {ast.unparse(item.value)}' if item.value else ''
            if 'default_factory' in default:
                default = ''
            kind = short(f'{ast.unparse(item.annotation)}{default}').replace('|', '\\|')
            rows.append(f'| `{ast.unparse(item.target)}` | `{kind}` | '
                        f'{source.comments.get(item.lineno, "")} |')
        elif isinstance(item, ast.FunctionDef) and is_property(item) and item.returns:
            rows.append(f'| `{item.name}` | `{short(ast.unparse(item.returns))}` | '
                        f'{ast.get_docstring(item)} |')
    return ['| field | type | meaning |', '|---|---|---|', *rows, ''] if rows else []


def methods(name: str, node: ast.ClassDef) -> list[str]:
    """Signatures and docstrings of the public methods."""
    lines = []
    for item in node.body:
        if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef)) or is_property(item):
            continue
        is_constructor = item.name == '__init__' and ast.get_docstring(item)
        if item.name.startswith('_') and not is_constructor:
            continue
        shown = name if is_constructor else item.name
        docstring = ast.get_docstring(item) or ''
        if name in SAME_METHODS:
            lines.append(signature(item, shown))
        else:
            lines += ['```python', signature(item, shown), '```', '', clean(docstring), '']
    if name in SAME_METHODS:
        return [f'Methods as of [{SAME_METHODS[name]}](#{SAME_METHODS[name].lower()}):', '',
                '```python', *lines, '```', ''] if lines else []
    return lines


def describe(name: str, sources: list[Source]) -> list[str]:
    """The section of one public name."""
    source = next(each for each in sources if name in each.definitions)
    node = source.definitions[name]
    lines = [f'### {name}', '']
    if isinstance(node, ast.Assign):
        return [*lines, '```python', ast.unparse(node), '```', '', source.docstrings[name], '']
    assert isinstance(node, ast.ClassDef)
    bases = [ast.unparse(base).rpartition('.')[2] for base in node.bases]
    known = [base for base in bases if any(base in names for _, names in SECTIONS)]
    lines += [clean(ast.get_docstring(node) or ''), '']
    if known:
        links = ' and '.join(f'[{base}](#{base.lower()})' for base in known)
        lines += [f'All of {links}, and:', '']
    return [*lines, *fields(node, source), *methods(name, node)]


def render() -> str:
    """The whole document."""
    sources = [Source(name) for name in ('llm', 'client', 'aio', 'types')]
    lines = [HEADER]
    for title, names in SECTIONS:
        lines += [f'## {title}', '']
        for name in names:
            lines += describe(name, sources)
    return '\n'.join(lines).rstrip() + '\n'


def main() -> int:
    """Writes or checks API.md."""
    text = render()
    if sys.argv[1:] == ['--check']:
        with open(TARGET, encoding='utf-8') as file:
            is_same = file.read() == text
        if not is_same:
            print('API.md is not up to date: run python3 clients/python/api_reference.py')
        return 0 if is_same else 1
    with open(TARGET, 'w', encoding='utf-8') as file:
        file.write(text)
    return 0


if __name__ == '__main__':
    sys.exit(main())
