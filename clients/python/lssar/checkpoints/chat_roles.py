"""Chat role tables: what a chat template writes, as plain strings (models/README.md).

derive() runs the template in jinja2's sandbox, in a child process with bounds on time, memory and
output. It renders marked messages, reads a table off the results, and keeps it only if table and
template agree on 1,000 random conversations.

The child runs this file by its path, so it imports the standard library and jinja2 alone.
"""

import hashlib
import json
import random
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

VERSION = 1
NAME = 'chat_roles.json'
ROLES = ('system', 'user', 'assistant')
NUM_CONVERSATIONS = 1000
MAX_TEMPLATE_BYTES = 1 << 20
MAX_OUTPUT = 4 << 20  # characters of one rendering
MAX_TABLE_BYTES = 1 << 20
CPU_S, WALL_S, MEMORY_BYTES = 10, 30, 1 << 30

Message = Mapping[str, str]
Table = dict[str, object]
Render = Callable[[Sequence[Message], bool], str | None]


class NoTable(Exception):
    """Why a template has no role table: a sentence without its subject."""


# ---- Tables.

def _strip(content: str, row: Mapping[str, object]) -> str:
    through = row.get('drop_through')
    if isinstance(through, str) and through in content:
        content = content.rpartition(through)[2]
        content = _strip_side(content, str(row.get('strip_dropped', 'none')), True)
    content = _strip_side(content, str(row.get('strip_left', 'none')), True)
    return _strip_side(content, str(row.get('strip_right', 'none')), False)


def _strip_side(content: str, kind: str, is_left: bool) -> str:
    characters = {'none': '', 'whitespace': None, 'newlines': '\n'}[kind]
    return content.lstrip(characters) if is_left else content.rstrip(characters)


def _row(table: Mapping[str, object], role: str) -> dict[str, object]:
    row = table[role]
    assert isinstance(row, dict)
    return row


def render(table: Mapping[str, object], messages: Sequence[Message],
           add_generation_prompt: bool = True) -> str:
    """The prompt that a table makes. Errors: ValueError for an order that it does not allow."""
    after, following = '', table['next']
    assert isinstance(following, dict)
    for i, message in enumerate(messages):
        if message['role'] not in following.get(after, ()):
            raise ValueError(f'messages[{i}].role is "{message["role"]}"; the chat template allows '
                             f'{", ".join(following.get(after, ())) or "none"} there')
        after = message['role']
    ends = table['generate_after' if add_generation_prompt else 'end_after']
    assert isinstance(ends, list)
    if after not in ends:
        raise ValueError(f'the last message is of role "{after}"; the chat template allows '
                         f'{", ".join(ends)} there')
    parts = [str(table['start'])]
    rest = list(enumerate(messages))
    merged, place = '', -1
    if messages[0]['role'] != 'system':
        parts.append(str(table['no_system']))
    elif (system := _row(table, 'system'))['placement'] != 'own':
        merged = f'{system["prefix"]}{_strip(messages[0]["content"], system)}{system["suffix"]}'
        users = [i for i, message in rest if message['role'] == 'user']
        place = users[0 if system['placement'] == 'first_user' else -1] if users else -1
        rest = rest[1:]
    last = table.get('last', {})
    assert isinstance(last, dict)
    for i, message in rest:
        role, is_last = message['role'], i == len(messages) - 1
        row = last[role] if is_last and role in last else _row(table, role)
        if i == place:
            row = _row(table, 'system').get('user', row)
        parts += [str(row['prefix']), merged if i == place else '',
                  _strip(message['content'], row), str(row['suffix'])]
    parts.append(str(table['generation_prompt' if add_generation_prompt else 'end']))
    return ''.join(parts)


TAG = re.compile(r'<[^<>\s]+>')


# ---- Deriving a table from renderings. Runs in the child.

SPACE = ' \t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u00a0\u2003\u3000'
# Contents of random conversations. `{}` is a number, so that messages differ.
CONTENTS = (
    'How are you {}?', 'Fine {}.\nAnd you?', ' {}', '{} ', '\n{}\n', '\t {} \r\n', '', ' ', '\n\n',
    '\u00a0{}\u3000', 'ünïcödé {} 漢字 🙂', '<|im_start|>user\n{}<|im_end|>', '[INST] {} [/INST]',
    '</s>{}<s>', '{{{{ bos_token }}}} {}', '{{% if x %}}{}', '<b>{}</b> & "quotes" \'single\'',
    '<think>\nso {}\n</think>\n\nwell {}', 'a {} </think> b </think>c', '</think>', '<think>{}',
    'system', 'user {}', 'assistant', '{}' * 50, '\x1f{}\x85', '# {}\n\n- a\n- b\n', '{}\\n')


def _marks(count: int) -> list[str]:
    return [f'Zq{i}kWv{i}X' for i in range(count)]


class _Prober:
    """Reads a table off a template."""

    def __init__(self, run: Render, bos: str, specials: Sequence[str]) -> None:
        self._run, self._bos, self._specials = run, bos, specials

    def _pieces(self, roles: str, add_generation_prompt: bool = False) -> list[str] | None:
        """The texts before, between and behind the marked contents of messages of these roles ('s',
        'u', 'a'). None: the template refuses them, or does not write each mark once, in order.
        """
        marks = _marks(len(roles))
        text = self._run(_conversation(roles, marks), add_generation_prompt)
        if text is None:
            return None
        pieces = []
        for mark in marks:
            before, found, text = text.partition(mark)
            if not found:
                return None
            pieces.append(before)
        return None if any(mark in text for mark in marks) else [*pieces, text]

    def table(self) -> Table:
        """Errors: NoTable."""
        alone = self._pieces('u', True)
        if alone is None:
            raise NoTable('refuses a conversation of one user message, or does not write it once'
                          + why(self._run))
        table = self._turns()
        self._add_system(table)
        self._add_strips(table)
        self._add_last(table)
        suffix = str(_row(table, 'assistant')['suffix'])
        table['stop_strings'] = self._stops(suffix)
        return table

    def _turns(self) -> Table:
        """Rows of user and assistant, start, no_system, generation_prompt and end."""
        long, short, pair = self._pieces('uauau'), self._pieces('u'), self._pieces('ua')
        prompted = self._pieces('u', True)
        if long is None or short is None or prompted is None:
            raise NoTable('refuses or reorders turns of user and assistant')
        head, to_assistant, to_user, _, _, _ = long
        if long[3] != to_assistant or long[4] != to_user or short[0] != head:
            raise NoTable('writes a turn in another way than the turn before it')
        user_end = short[1]
        assistant_end = pair[2] if pair else None
        for end in self._ends(user_end, assistant_end):
            user_suffix = user_end.removesuffix(end) if end else user_end
            assistant_suffix = self._assistant_suffix(assistant_end, end, to_user, head)
            if not to_assistant.startswith(user_suffix) or assistant_suffix is None:
                continue
            user_prefix = to_user[len(assistant_suffix):]
            if not head.endswith(user_prefix) or not prompted[1].startswith(user_suffix):
                continue
            break
        else:
            raise NoTable('writes the first or the last turn in a way that depends on its place')
        opening = head.removesuffix(user_prefix)
        start = self._bos if self._bos and opening.startswith(self._bos) else ''
        return {
            'version': VERSION, 'start': start, 'no_system': opening[len(start):], 'system': None,
            'user': {'prefix': user_prefix, 'suffix': user_suffix},
            'assistant': {'prefix': to_assistant[len(user_suffix):], 'suffix': assistant_suffix},
            'generation_prompt': prompted[1][len(user_suffix):], 'end': end,
            'next': {'': ['user'], 'system': ['user'], 'user': ['assistant'],
                     'assistant': ['user']},
            'generate_after': ['user'], 'end_after': ['user']}

    def _ends(self, user_end: str, assistant_end: str | None) -> list[str]:
        """What may be written behind the last message, likely ones first: nothing, a special token,
        a text from a tag on, or any text that both kinds of conversations end with.
        """
        shared = user_end if assistant_end is None else _common_suffix(user_end, assistant_end)
        specials = [each for each in self._specials if each and shared.endswith(each)]
        others = [shared[i:] for i in range(len(shared) - 1, -1, -1)]
        tags = [each for each in others if TAG.match(each)]
        return ['', *sorted(specials, key=len), *tags, *others]

    def _assistant_suffix(self, assistant_end: str | None, end: str, to_user: str,
                          head: str) -> str | None:
        if assistant_end is not None:
            suffix = assistant_end.removesuffix(end) if end else assistant_end
            return suffix if to_user.startswith(suffix) else None
        # No conversation may end with the assistant: the user's prefix is what the first one has.
        for i in range(len(to_user) + 1):
            if head.endswith(to_user[i:]):
                return to_user[:i]
        return None

    def _add_system(self, table: Table) -> None:
        pieces, later = self._pieces('su'), self._pieces('suau')
        if pieces is None or later is None:
            text = self._run(_conversation('suau', _marks(4)), False)
            if text is None or _marks(4)[0] not in text:
                return  # refused or dropped: no system messages
            self._add_system_of_last_user(table, text)
            return
        prefix = str(_row(table, 'user')['prefix'])
        start, opening = str(table['start']), str(table['start']) + str(table['no_system'])
        if pieces[1].endswith(prefix) and pieces[0].startswith(start):
            suffix = pieces[1][:len(pieces[1]) - len(prefix)]
            table['system'] = {'placement': 'own', 'prefix': pieces[0][len(start):],
                               'suffix': suffix}
        elif pieces[0].startswith(opening + prefix):
            table['start'], table['no_system'] = opening, ''
            table['system'] = {'placement': 'first_user',
                               'prefix': pieces[0][len(opening + prefix):], 'suffix': pieces[1]}
        else:
            return
        _next(table)[''].append('system')

    def _add_system_of_last_user(self, table: Table, text: str) -> None:
        """The system message stands in the last user message: marks in the order 1, 2, 0, 3."""
        marks = _marks(4)
        row = _row(table, 'user')
        before, _, rest = text.partition(marks[0])
        lead = before.rpartition(marks[2])[2]
        between = str(_row(table, 'assistant')['suffix']) + str(row['prefix'])
        if marks[3] not in rest or not lead.startswith(between):
            return
        table['system'] = {'placement': 'last_user', 'prefix': lead[len(between):],
                           'suffix': rest.partition(marks[3])[0]}
        table['start'], table['no_system'] = f'{table["start"]}{table["no_system"]}', ''
        _next(table)[''].append('system')

    def _add_strips(self, table: Table) -> None:
        conversations = {'user': ('uau', 2), 'assistant': ('uau', 1)}
        for role, (roles, place) in conversations.items():
            self._add_strip(table, _row(table, role), roles, place)
        if table['system'] is None:
            return
        system = _row(table, 'system')
        self._add_strip(table, system, 'su', 0)
        if system['placement'] != 'own':
            row = {**_row(table, 'user')}
            for side in ('strip_left', 'strip_right'):
                row.pop(side, None)
            system['user'] = row
            self._add_strip(table, row, 'su', 1)
            if row == _row(table, 'user'):
                del system['user']

    def _add_strip(self, table: Table, row: dict[str, object], roles: str, place: int) -> None:
        """Tries the kinds of stripping until table and template agree on a content of spaces.

        Errors: NoTable.
        """
        marks = _marks(len(roles))

        def agrees(content: str) -> bool:
            messages = _conversation(roles, marks)
            messages[place] = {'role': messages[place]['role'], 'content': content}
            return render(table, messages, True) == self._run(messages, True)

        probes = (f'{SPACE}x', f'\n\n {SPACE}x', f'x{SPACE}', f'x{SPACE} \n\n', 'x')
        for left in ('none', 'whitespace', 'newlines'):
            for right in ('none', 'whitespace', 'newlines'):
                row['strip_left'], row['strip_right'] = left, right
                if all(map(agrees, probes)):
                    self._add_drop(row, agrees)
                    for side in ('strip_left', 'strip_right'):
                        if row[side] == 'none':
                            del row[side]
                    return
        raise NoTable('changes contents in a way that is no stripping')

    @staticmethod
    def _add_drop(row: dict[str, object], agrees: Callable[[str], bool]) -> None:
        """Finds out whether a chain of thought is dropped. Errors: NoTable."""
        probes = (f'a</think>{SPACE}x', '<think>a</think>\n\n x', 'a</think>b</think>\n \nc')
        if all(map(agrees, probes)):
            return
        row['drop_through'] = '</think>'
        for kind in ('none', 'whitespace', 'newlines'):
            row['strip_dropped'] = kind
            if all(map(agrees, probes)):
                if kind == 'none':
                    del row['strip_dropped']
                return
        raise NoTable('changes contents with </think> in a way that is no dropping')

    def _add_last(self, table: Table) -> None:
        """A row for the assistant's message at the end, where it is written in another way."""
        pieces = self._pieces('ua')
        if pieces is None:
            return
        row = _row(table, 'assistant')
        user_suffix = str(_row(table, 'user')['suffix'])
        prefix = pieces[1][len(user_suffix):]
        if pieces[1].startswith(user_suffix) and prefix != row['prefix']:
            table['last'] = {'assistant': {**row, 'prefix': prefix}}

    def _stops(self, suffix: str) -> list[str]:
        """What ends a turn of the assistant: the first special token of its suffix."""
        known = [each for each in self._specials if each and each in suffix]
        known += TAG.findall(suffix)
        if not known:
            return []
        return [min(known, key=lambda each: (suffix.index(each), -len(each)))]


def _common_suffix(a: str, b: str) -> str:
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return a[len(a) - count:]


def _conversation(roles: str, contents: Sequence[str]) -> list[Message]:
    names = {'s': 'system', 'u': 'user', 'a': 'assistant'}
    return [{'role': names[role], 'content': content} for role, content in zip(roles, contents)]


def _next(table: Table) -> dict[str, list[str]]:
    following = table['next']
    assert isinstance(following, dict)
    return following


def _agree(table: Table, run: Render, messages: Sequence[Message], prompted: bool) -> bool:
    try:
        made = render(table, messages, prompted)
    except ValueError:
        return False
    return made == run(messages, prompted)


def _widen(table: Table, run: Render) -> Table:
    """The table with all orders and ends on which it agrees with the template."""
    wide: Table = json.loads(json.dumps(table))
    roles = [role for role in ROLES if wide[role] is not None]
    wide['next'] = {after: list(roles) for after in ('', *roles)}
    wide['generate_after'], wide['end_after'] = list(roles), list(roles)
    paths = {'': '', 'user': 'u', 'assistant': 'ua', 'system': 's'}
    tails = ('', 'u', 'au', 'uau')

    def works(conversation: str, prompted: bool = True) -> bool:
        return _agree(wide, run, _conversation(conversation, _marks(len(conversation))), prompted)

    following = {after: [role for role in roles if any(
        works(paths[after] + role[0] + tail) for tail in tails)] for after in ('', *roles)}
    ends = {kind: [role for role in roles if works(paths[role], kind == 'generate_after')]
            for kind in ('generate_after', 'end_after')}
    if wide['system'] is not None and _row(wide, 'system')['placement'] != 'own':
        following['system'] = [role for role in following['system'] if role == 'user']
        ends = {kind: [role for role in each if role != 'system'] for kind, each in ends.items()}
    wide.update(next=following, **ends)
    return wide


def random_conversation(table: Table, dice: random.Random, prompted: bool) -> list[Message] | None:
    """Messages of up to twelve turns in an order that the table allows, or None: try again."""
    ends = table['generate_after' if prompted else 'end_after']
    assert isinstance(ends, list)
    messages: list[Message] = []
    after = ''
    for _ in range(dice.randint(1, 12)):
        options = _next(table).get(after, [])
        if not options:
            break
        after = dice.choice(options)
        content = dice.choice(CONTENTS).format(*[dice.randrange(1000)] * 50)
        messages.append({'role': after, 'content': content})
    while messages and messages[-1]['role'] not in ends:
        messages.pop()
    return messages or None


def disagreement(table: Table, run: Render, count: int = NUM_CONVERSATIONS,
                 seed: int = 1) -> list[Message] | None:
    """A conversation on which table and template differ, or None."""
    dice = random.Random(seed)
    tried = 0
    for _ in range(100 * count):
        prompted = dice.random() < 0.5
        messages = random_conversation(table, dice, prompted)
        if messages is None:
            continue
        if not _agree(table, run, messages, prompted):
            return messages
        tried += 1
        if tried == count:
            return None
    raise NoTable('allows too few conversations')


def _narrowed(table: Table) -> list[Table]:
    """Tables that allow less, widest first."""
    def without(changed: Table, **fields: object) -> Table:
        copy: Table = {**changed, **fields}
        return copy

    only_user = without(table, generate_after=['user'], end_after=['user'])
    only_user.pop('last', None)
    turns = {'': ['user'], 'user': ['assistant'], 'assistant': ['user']}
    tables = [table, only_user]
    if table['system']:
        tables.append(without(only_user, next={
            **turns, '': ['system', 'user'], 'system': ['user']}))
    # Without a row for system messages no order may name them.
    tables.append(without(only_user, next=turns, system=None))
    return tables


def find_table(run: Render, bos: str, specials: Sequence[str]) -> Table:
    """The table of a template. Errors: NoTable."""
    table = _Prober(run, bos, specials).table()
    failed: list[Message] | None = None
    for each in _narrowed(_widen(table, run)):
        failed = disagreement(each, run)
        if failed is None:
            return each
    assert failed is not None
    shown = json.dumps(failed[-1], ensure_ascii=True)[:200]
    raise NoTable(f'writes something else than its table for a conversation that ends with {shown}')


# ---- jinja2, in the child.

def renderer(template: str, tokens: Mapping[str, str]) -> Render:
    """What renders conversations by a template, None where it refuses one; why() says why. Its
    is_attack is true once the sandbox has stopped it. MAX_OUTPUT bounds what it writes; time and
    memory are the caller's to bound.

    Errors: NoTable where jinja2 cannot compile it.
    """
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.parser
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):  # type: ignore[misc,unused-ignore]
        """transformers' {% generation %}: its content."""

        tags = {'generation'}

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            body: list[jinja2.nodes.Node] = parser.parse_statements(
                ('name:endgeneration',), drop_needle=True)
            return body

    def refuse(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True,
        extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters['tojson'] = lambda value, **options: json.dumps(
        value, ensure_ascii=False, indent=options.get('indent'))
    environment.globals['raise_exception'] = refuse
    try:
        compiled = environment.from_string(template)
    except (jinja2.TemplateError, RecursionError) as error:
        raise NoTable(f'is no template that jinja2 reads: {error}'[:300]) from None

    errors: list[str] = []

    def run(messages: Sequence[Message], add_generation_prompt: bool) -> str | None:
        parts: list[str] = []
        size = 0
        try:
            for part in compiled.generate(
                    messages=[dict(message) for message in messages], tools=None, documents=None,
                    add_generation_prompt=add_generation_prompt, **tokens):
                parts.append(part)
                size += len(part)
                if size > MAX_OUTPUT:
                    raise NoTable(f'writes more than {MAX_OUTPUT} characters')
        except (NoTable, MemoryError):
            raise
        except Exception as error:  # a template can raise nearly anything
            errors[:] = [f'{type(error).__name__}: {error}'[:200]]
            if isinstance(error, jinja2.sandbox.SecurityError):
                setattr(run, 'is_attack', True)
            return None
        return ''.join(parts)

    setattr(run, 'errors', errors)
    setattr(run, 'is_attack', False)
    return run


def why(run: Render) -> str:
    """The last error of a template, for a sentence."""
    errors = getattr(run, 'errors', [])
    return f' ({errors[0]})' if errors else ''


def _child() -> None:
    """Reads a request on standard input; writes {"table": ...} or {"why": ...}."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (request['cpu_s'], request['cpu_s']))
    try:
        run = renderer(request['template'], request['tokens'])
        bos = request['tokens'].get('bos_token', '')
        answer: dict[str, object] = {'table': find_table(run, bos, request['specials'])}
    except NoTable as error:
        answer = {'why': str(error)}
    except MemoryError:
        answer = {'why': f'takes more than {MEMORY_BYTES >> 20} MiB of memory'}
    except RecursionError:
        answer = {'why': 'recurses without end'}
    json.dump(answer, sys.stdout)


# ---- The parent.

def derive(template: str, tokens: Mapping[str, str], specials: Sequence[str] = (),
           cpu_s: int = CPU_S) -> Table:
    """The role table of a template. tokens: bos_token, eos_token and others by transformers' names;
    specials: further special tokens.

    Errors: NoTable. ModuleNotFoundError without jinja2.
    """
    import jinja2  # noqa: F401  # the child needs it

    encoded = template.encode('utf-8', 'surrogatepass')
    if len(encoded) > MAX_TEMPLATE_BYTES:
        raise NoTable(f'has more than {MAX_TEMPLATE_BYTES} bytes')
    request = {'template': template, 'tokens': dict(tokens), 'cpu_s': cpu_s,
               'specials': [*dict.fromkeys([*tokens.values(), *specials])]}
    try:
        done = subprocess.run([sys.executable, '-P', '-B', __file__], check=False,
                              input=json.dumps(request).encode(), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=WALL_S)
    except subprocess.TimeoutExpired:
        raise NoTable(f'takes more than {WALL_S} s') from None
    if done.returncode:
        if done.returncode < 0:
            raise NoTable(f'takes more than {cpu_s} s')
        last = done.stderr.decode('utf-8', 'replace').strip().rpartition('\n')[2]
        raise NoTable(f'ends jinja2 with code {done.returncode}: {last[:200]}')
    answer = json.loads(done.stdout)
    if 'why' in answer:
        raise NoTable(str(answer['why']))
    table: Table = answer['table']
    table = {'version': VERSION,
             'template_sha256': hashlib.sha256(encoded).hexdigest(),
             **table}
    if len(json.dumps(table)) > MAX_TABLE_BYTES:
        raise NoTable(f'has a table of more than {MAX_TABLE_BYTES} bytes')
    return table


if __name__ == '__main__':
    _child()
