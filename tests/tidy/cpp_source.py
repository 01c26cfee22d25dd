"""What tidy needs to know of a C++ file: its code without comments and strings, its functions, the
names that it declares. A reader of this project's style, not a parser of C++."""

import re
from typing import Iterator, NamedTuple

_NOT_CODE = re.compile(
    r'R"(?P<mark>[^()\\\s]{0,16})\((?:.|\n)*?\)(?P=mark)"'  # raw string
    r'|//(?:\\\n|[^\n])*'
    r'|/\*(?:.|\n)*?\*/'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<!\w)'(?:\\.|[^'\\\n])+'")  # not the quotes of 1'000'000


def _blank(text: str) -> str:
    return re.sub(r'[^\n]', ' ', text)


def code_of(text: str) -> str:
    """The text with comments, strings and characters blanked: every line stays where it was."""
    return _NOT_CODE.sub(lambda m: _blank(m.group()), text)


def without_directives(code: str) -> str:
    """Code with preprocessor lines blanked, and of an #if only the first branch kept, so that
    braces balance."""
    lines = code.split('\n')
    skipping = []  # for each open #if: are we past its first branch?
    continued = False
    for i, line in enumerate(lines):
        directive = re.match(r'\s*#\s*(\w*)', line)
        if continued or directive:
            word = directive.group(1) if directive and not continued else ''
            if word.startswith('if'):
                skipping.append(False)
            elif word in ('else', 'elif') and skipping:
                skipping[-1] = True
            elif word == 'endif' and skipping:
                skipping.pop()
            continued = line.endswith('\\')
            lines[i] = ''
        elif any(skipping):
            lines[i] = ''
    return '\n'.join(lines)


class Function(NamedTuple):
    first_line: int  # 1-based, of the signature
    last_line: int  # of the closing brace
    num_parameters: int


def _matching(text: str, start: int) -> int:
    """Index of the bracket that closes the one at `start`, or the end."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in '([{') - (text[i] in ')]}')
        if depth == 0:
            return i
    return len(text)


def _without_templates(head: str) -> str:
    """A declaration without `template <...>`, attributes and alignas(...)."""
    head = re.sub(r'\[\[.*?\]\]|\balignas\s*\([^)]*\)', ' ', head, flags=re.S)
    while match := re.search(r'\btemplate\s*<', head):
        depth, end = 1, match.end()
        while depth and end < len(head):
            depth += (head[end] == '<') - (head[end] == '>')
            end += 1
        head = head[:match.start()] + head[end:]
    return head


def _parameters(head: str) -> str:
    """The text between the parentheses of a function's declaration."""
    angles = 0
    i = 0
    while i < len(head):
        if re.match(r'operator\s*\(\s*\)', head[i:]):
            i += re.match(r'operator\s*\(\s*\)', head[i:]).end()
            continue
        if head[i] == '<' and i and (head[i - 1].isalnum() or head[i - 1] == '_'):
            angles += 1
        elif head[i] == '>' and angles:
            angles -= 1
        elif head[i] == '(' and angles == 0:
            return head[i + 1:_matching(head, i)]
        i += 1
    return ''


def _count_parameters(parameters: str) -> int:
    if parameters.strip() in ('', 'void'):
        return 0
    depth = 0
    count = 1
    for before, char in zip(' ' + parameters, parameters):
        if char in '([{<':
            depth += 1
        elif char in ')]}' or (char == '>' and before != '-'):
            depth -= 1
        elif char == ',' and depth == 0:
            count += 1
    return count


def _kind_of(head: str) -> str:
    """What a brace after this declaration opens: a scope, a function, or something else."""
    head = _without_templates(head)
    if re.match(r'\s*(inline\s+)?namespace\b|\s*extern\s*$', head):
        return 'scope'
    outside = re.sub(r'\(.*\)', '()', head, flags=re.S)
    if re.search(r'\benum\b', outside):
        return 'other'
    if re.search(r'\b(class|struct|union)\b', outside) and '(' not in outside:
        return 'scope'
    is_value = re.search(r'(?<![=!<>+\-*/|&^%])=(?!=)', outside) and 'operator' not in outside
    return 'function' if '(' in outside and not is_value else 'other'


def functions(code: str) -> Iterator[Function]:
    """Every function definition outside other functions, of code without directives."""
    stack = []  # (kind, start of the declaration, first line of a function, its parameters)
    head_start = 0
    parentheses = 0
    line_starts = [m.end() for m in re.finditer(r'\n', code)]

    def line_of(position: int) -> int:
        low, high = 0, len(line_starts)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if line_starts[middle] <= position else (low, middle)
        return low + 1

    for match in re.finditer(r'[{};()]', code):
        char, position = match.group(), match.start()
        in_scope = not stack or stack[-1][0] == 'scope'
        if char == '{':
            head = re.sub(r'^\s*((public|private|protected)\s*:\s*)+',
                          lambda m: _blank(m.group()), code[head_start:position])
            kind = 'other'
            if in_scope and parentheses == 0:
                kind = _kind_of(head)
            first = head_start + len(head) - len(head.lstrip())
            stack.append((kind, head_start, line_of(first), _count_parameters(_parameters(
                _without_templates(head))) if kind == 'function' else 0))
            if kind == 'scope':
                head_start = position + 1
        elif char == '}':
            if stack:
                kind, declaration, first_line, num_parameters = stack.pop()
                follows = code[position + 1:position + 200].lstrip()[:1]
                if kind == 'function' and follows and follows in ',{':
                    head_start = declaration  # `F() : a_{1}, b_{2} {`: the body is still to come
                elif kind == 'function':
                    yield Function(first_line, line_of(position), num_parameters)
                    head_start = position + 1
                elif kind == 'scope':
                    head_start = position + 1
        elif in_scope and char == ';' and parentheses == 0:
            head_start = position + 1
        elif in_scope and char in '()':
            parentheses = max(0, parentheses + (char == '(') - (char == ')'))


_NOT_TYPES = frozenset(
    'return new delete throw case goto else co_return co_await co_yield and or not using namespace '
    'sizeof in public private protected if while switch do operator default'.split())
_DECLARATIONS = (
    re.compile(r'\b(?:class|struct|union|enum|namespace|concept|using|typename|define)\s+'
               r'(?P<name>[A-Za-z_]\w*)'),
    # A type, perhaps with template arguments, then a name and what may follow a declared name.
    re.compile(r'(?<![.\w])(?P<type>[A-Za-z_][\w:]*)(?:<[^;{}()]*>)?(?:\s*[*&]+\s*|\s+)'
               r'(?:const\s+)?(?P<name>[A-Za-z_]\w*)\s*(?=[;=,(){\[:])'),
    re.compile(r'>\s+(?P<name>[A-Za-z_]\w*)\s*(?=[;={])'),
)
_BINDINGS = re.compile(r'\bauto\s*(?:const\s*)?&{0,2}\s*\[([^\]]*)\]')


def declared_names(code: str) -> Iterator[tuple[int, str]]:
    """(line, name) of what looks declared in code: types, functions, variables, fields, macros."""
    for pattern in _DECLARATIONS:
        for match in pattern.finditer(code):
            if match.groupdict().get('type') in _NOT_TYPES:
                continue
            yield code.count('\n', 0, match.start('name')) + 1, match.group('name')
    for match in _BINDINGS.finditer(code):
        for name in match.group(1).split(','):
            yield code.count('\n', 0, match.start()) + 1, name.strip()
