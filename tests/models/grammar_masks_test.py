"""Masks of the constraints against those of xgrammar's own Python package, id by id.

Run by ctest. More steps: LSSAR_NUM_STEPS=2000. Skipped where PyPI cannot be reached.
"""

import json
import os
import subprocess
import sys
import types
import unittest

import environments

PROGRAM = os.environ['LSSAR_GRAMMAR_MASKS']
NUM_STEPS = int(os.environ.get('LSSAR_NUM_STEPS', '600'))
INSIDE = 'LSSAR_INSIDE_XGRAMMAR'

# No bounds of lengths: deploy/xgrammar.sh changes which characters they count.
PERSON = {'type': 'object', 'properties': {
    'name': {'type': 'string'},
    'age': {'type': 'integer', 'minimum': 0, 'maximum': 130},
    'tags': {'type': 'array', 'items': {'enum': ['a', 'b', 'long one']}, 'maxItems': 4},
    'friend': {'anyOf': [{'$ref': '#'}, {'type': 'null'}]}}, 'required': ['name', 'age']}
SOURCES = [
    ('schema', {'type': 'object'}), ('schema', {}), ('schema', PERSON),
    ('schema', {'type': 'array', 'items': {'type': 'number'}, 'minItems': 2}),
    ('schema', {'type': 'string', 'pattern': '[a-z]{2,5}(-[0-9]+)?'}),
    ('schema', {'type': 'string', 'format': 'date-time'}),
    ('schema', {'oneOf': [{'type': 'string'}, {'type': 'integer'}, {'type': 'boolean'}]}),
    ('schema', {'type': 'object', 'additionalProperties': {'type': 'boolean'}}),
    ('schema', {'type': 'object', 'patternProperties': {'^x_[a-z]+$': {'type': 'null'}}}),
    ('schema', {'type': 'array', 'prefixItems': [{'const': 1}, {'type': 'string'}],
                'items': False}),
    ('regex', '(cat|dog)( and (cat|dog|caterpillar))*[.!]'), ('regex', '.*'),
    ('regex', '[^a-c]+[0-9]{3}'), ('regex', '-?[0-9]+(\\.[0-9]+)?([eE][+-]?[0-9]+)?'),
    ('ebnf', 'root ::= expr\nexpr ::= term (("+" | "-") term)*\n'
             'term ::= [0-9]+ | "(" expr ")"\n'),
    ('ebnf', 'root ::= "\u00e9t\u00e9" | [\u0400-\u04ff]+ | "\U0001f600"*\n'),
]


def masks(directory, vocab_size, num_steps):
    """The lines of the program."""
    lines = ''.join(json.dumps({'kind': kind, 'text': text if kind != 'schema' else
                                json.dumps(text)}) + '\n' for kind, text in SOURCES)
    done = subprocess.run([PROGRAM, directory, str(vocab_size), str(num_steps)], input=lines,
                          capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


class GrammarMasksTest(unittest.TestCase):

    def compare(self, directory, vocab_size, num_steps):
        import torch
        import xgrammar
        first, *results = masks(directory, vocab_size, num_steps)
        info = xgrammar.TokenizerInfo([bytes.fromhex(piece) for piece in first['vocabulary']],
                                      vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[])
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.assertEqual(len(results), len(SOURCES))
        num_compared = 0
        for (kind, source), result in zip(SOURCES, results):
            with self.subTest(source=source):
                self.assertNotIn('error', result)
                compiled = (compiler.compile_json_schema(result['text'], max_whitespace_cnt=32)
                            if kind == 'schema' else
                            compiler.compile_regex(source) if kind == 'regex' else
                            compiler.compile_grammar(source))
                matcher = xgrammar.GrammarMatcher(compiled)
                mask = xgrammar.allocate_token_bitmask(1, vocab_size)
                for step in result['steps']:
                    matcher.fill_next_token_bitmask(mask)
                    if vocab_size % 32:  # bits that belong to no id
                        mask[0, -1] &= (1 << vocab_size % 32) - 1
                    expected = torch.frombuffer(bytearray.fromhex(step['mask']), dtype=torch.int32)
                    self.assertTrue(torch.equal(mask[0], expected))
                    self.assertEqual(matcher.is_completed(), step['complete'])
                    num_compared += 1
                    if step['id'] < 0:
                        matcher = xgrammar.GrammarMatcher(compiled)
                    else:
                        self.assertTrue(matcher.accept_token(step['id']))
        return num_compared

    def test_a_vocabulary_of_sentencepiece(self):
        num_compared = self.compare('models/zoo/lssar-6m', 4096, NUM_STEPS)
        print(f'{num_compared} masks are equal')

    def test_a_vocabulary_of_bytes(self):
        num_compared = self.compare('tests/models/gpt2', 50257, NUM_STEPS // 5)
        print(f'{num_compared} masks are equal')


if __name__ == '__main__':
    if INSIDE in os.environ:
        # Imported by xgrammar for functions that are not called here.
        transformers = types.ModuleType('transformers')
        for name in ('PreTrainedTokenizerBase', 'PreTrainedTokenizerFast', 'LogitsProcessor'):
            setattr(transformers, name, type(name, (), {}))
        sys.modules['transformers'] = transformers
        unittest.main()
    try:
        interpreter = environments.environment('xgrammar', has_client=False, is_debian=True)
    except unittest.SkipTest as error:
        print(error)
        sys.exit(0)
    sys.exit(subprocess.run([interpreter, '-W', 'ignore', *sys.argv], check=False,
                            env={**os.environ, INSIDE: '1'}).returncode)
