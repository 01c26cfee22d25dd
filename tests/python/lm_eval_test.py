"""lm-evaluation-harness from PyPI with the model `lssar`: its numbers are the engine's own."""

import json
import pathlib
import shutil
import tempfile
import unittest

from environments import HERE, OWN_TASKS_ALONE, changed, environment, isolated, run
from lssar import Client
from programs import CLI, RunningServer, run_page
from quick_models import UNCHECKED as MODEL

MAX_LENGTH = 31  # a small window, so that texts of the tasks are longer
MAX_GEN_TOKS = 24  # as tasks/generate.yaml


def rows(task):
    """The documents of a task."""
    lines = (HERE / 'tasks' / f'{task}.jsonl').read_text(encoding='utf-8').splitlines()
    return [json.loads(line) for line in lines]


class HiddenStatesPageTest(unittest.TestCase):
    """Its program runs with the scikit-learn that lm-eval needs, and shows what the page says."""

    def test_a_linear_probe(self):
        lines = run_page('docs/hidden_states.md', environment('foreign'), isolated())
        layers, accuracies = zip(*(line.rstrip('%').split(': ') for line in lines), strict=True)
        self.assertEqual(layers, tuple(f'layer {i}' for i in range(7)))
        accuracy = [float(each) for each in accuracies]
        self.assertGreater(max(accuracy), 70)  # a guess: 50
        self.assertGreater(max(accuracy), accuracy[0])


class OptionsTest(unittest.TestCase):

    PROGRAM = '''
import json, sys
import lssar.lm_eval
for given in json.loads(sys.argv[1]):
    try:
        print(json.dumps(lssar.lm_eval.to_options(given, 9)[0]))
    except ValueError as error:
        print(json.dumps(str(error)))
'''

    def test_numbers_of_generation_arguments(self):
        usual = {'max_tokens': 9, 'stop_strings': [], 'temperature': 0.0}
        word = 'the generation argument '
        cases = (
            ({'max_gen_toks': 3.0}, {**usual, 'max_tokens': 3}),
            ({'max_gen_toks': '3'}, {**usual, 'max_tokens': 3}),
            ({'top_k': 5.0, 'seed': 2**63 + 1}, {**usual, 'top_k': 5, 'seed': 2**63 + 1}),
            ({'max_gen_toks': None, 'top_k': None, 'top_p': None, 'until': None}, usual),
            ({'max_gen_toks': 3.5}, word + 'max_gen_toks is 3.5; must be a whole number'),
            ({'top_k': True}, word + 'top_k is True; must be a whole number'),
            ({'top_p': 'x'}, word + "top_p is 'x'; must be a number"))
        done = run(environment('foreign'), '-c', self.PROGRAM,
                   json.dumps([given for given, _ in cases]), env=isolated())
        found = list(map(json.loads, done.stdout.splitlines()[-len(cases):]))
        for (given, expected), each in zip(cases, found, strict=True):
            self.assertEqual(each, expected, given)


class LmEvalTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.python = environment('foreign')
        cls.server = cls.enterClassContext(RunningServer(model=MODEL))
        cls.client = cls.enterClassContext(Client(cls.server.address, timeout_s=120))
        cls.other = cls.enterClassContext(RunningServer('--allow-attention-override',
                                                         model=MODEL))
        cls.small = cls.enterClassContext(RunningServer('--max-model-len', '28', model=MODEL))
        cls.scratch = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        every = ['lssar_choice', 'lssar_rolling', 'lssar_generate']
        choice, generate = every[0:1], every[2:3]
        server = f'server={cls.server.address}'
        runs = [{'tasks': every, 'model_args': f'{server},max_length={MAX_LENGTH}'},
                {'tasks': generate, 'model_args': server, 'apply_chat_template': True},
                {'tasks': every, 'model_args': f'server={cls.other.address},p=5'},
                {'tasks': generate, 'model_args': f'{server},max_length=16384'},
                {'tasks': generate, 'model_args': f'{server},max_lenght=5'},
                {'tasks': generate, 'model_args': server, 'gen_kwargs': 'num_beams=4'},
                {'tasks': generate, 'model_args': f'{server},max_length={MAX_GEN_TOKS}'},
                {'tasks': choice, 'model_args': server, 'apply_chat_template': True},
                {'tasks': generate, 'model_args': f'server={cls.small.address}',
                 'apply_chat_template': True},
                {'tasks': choice, 'model_args': f'{server},p=5'}]
        done = run(cls.python, HERE / 'run_lm_eval.py', HERE / 'tasks', json.dumps(runs),
                   env=cls.environment())
        short, chat, another_p, *errors = json.loads(done.stdout.splitlines()[-1])
        cls.short, cls.chat = short['samples'], chat['samples']
        cls.another_p = another_p['samples']
        cls.errors = [each['error'] for each in errors]

    @classmethod
    def environment(cls):
        """Without a network: all data is here."""
        return isolated(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1',
                        HF_HOME=str(cls.scratch / 'hf'))

    def test_the_program_gives_the_same(self):
        out = self.scratch / 'program'
        run(pathlib.Path(self.python).parent / 'lssar-lm-eval', '--model', 'lssar', '--model_args',
            f'server={self.server.address},max_length={MAX_LENGTH}', '--tasks', 'lssar_choice',
            '--include_path', HERE / 'tasks', '--output_path', out, '--log_samples',
            env={**self.environment(), 'PYTHONPATH': changed(self.scratch / 'modules', 'lm_eval',
                                                             OWN_TASKS_ALONE)})
        [path] = out.rglob('samples_*.jsonl')
        lines = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
        self.assertEqual([[float(answer[0][0]) for answer in line['resps']]
                          for line in sorted(lines, key=lambda line: line['doc_id'])],
                         [[answer[0][0] for answer in sample['resps']]
                          for sample in self.short['lssar_choice']])

    def test_log_likelihoods_are_those_of_score(self):
        num_checked = 0
        for sample, row in zip(self.short['lssar_choice'], rows('choice'), strict=True):
            scores = self.client.score(row['question'],
                                       [' ' + choice for choice in row['choices']])
            if len(self.client.tokenize(row['question'])) + 8 > MAX_LENGTH:
                continue  # truncated: the next test's
            num_checked += 1
            self.assertEqual([tuple(answer[0]) for answer in sample['resps']],
                             [(score.logprob, score.is_greedy) for score in scores])
            best = max(range(len(scores)), key=lambda i: scores[i].logprob)
            self.assertEqual(sample['acc'], float(best == row['answer']))
        self.assertGreaterEqual(num_checked, 4)

    def test_a_short_window_truncates_on_the_left_only_what_is_longer(self):
        is_truncated = []
        for sample, row in zip(self.short['lssar_choice'], rows('choice')):
            expected = []
            for choice in row['choices']:
                whole = self.client.tokenize(f'{row["question"]} {choice}')
                num_context = len(self.client.tokenize(row['question']))
                first = max(0, len(whole) - MAX_LENGTH - 1)
                is_truncated.append(first > 0)
                [score] = self.client.score(whole[first:num_context], [whole[num_context:]])
                expected.append(score.logprob)
            self.assertEqual([answer[0][0] for answer in sample['resps']], expected)
        self.assertEqual(set(is_truncated), {False, True})

    def test_rolling_windows_cover_each_token_once(self):
        bos = self.client.get_info().bos_id
        num_windows = []
        for sample, row in zip(self.short['lssar_rolling'], rows('rolling'), strict=True):
            ids = [bos, *self.client.tokenize(row['text'], add_bos=False)]
            total = 0.0
            scored = 1
            num_windows.append(0)
            while scored < len(ids):
                end = min(len(ids), scored + MAX_LENGTH)
                first = max(0, end - MAX_LENGTH - 1)
                [score] = self.client.score(ids[first:scored], [ids[scored:end]])
                total += score.logprob
                scored = end
                num_windows[-1] += 1
            self.assertEqual(sample['resps'][0][0], total)
        self.assertEqual(num_windows[1], 1)
        self.assertGreater(max(num_windows), 2)

    def test_generations_end_before_the_stop_string(self):
        for sample, row in zip(self.short['lssar_generate'], rows('generate'), strict=True):
            prompt = self.client.tokenize(row['question'])[-(MAX_LENGTH + 1 - MAX_GEN_TOKS):]
            [answer] = self.client.complete(prompt, max_tokens=MAX_GEN_TOKS, temperature=0)
            text = answer.text.split('.')[0].split('\n\n')[0]
            self.assertEqual(sample['resps'][0][0], text)

    def test_chats_go_through_the_servers_template(self):
        for sample, row in zip(self.chat['lssar_generate'], rows('generate'), strict=True):
            [answer] = self.client.complete([('user', row['question'])], max_tokens=MAX_GEN_TOKS,
                                            temperature=0, stop_strings=['.', '\n\n'])
            self.assertEqual(sample['resps'][0][0], answer.text)

    def test_another_p(self):
        """p applies to every kind of request."""
        override = {'attention_override': {'p': 5}}
        with Client(self.other.address, timeout_s=120) as client:
            for sample, row in zip(self.another_p['lssar_choice'], rows('choice'), strict=True):
                scores = client.score(row['question'], [' ' + each for each in row['choices']],
                                      **override)
                self.assertEqual([answer[0][0] for answer in sample['resps']],
                                 [score.logprob for score in scores])
            for sample, row in zip(self.another_p['lssar_rolling'], rows('rolling'), strict=True):
                [score] = client.score([client.get_info().bos_id],
                                       [client.tokenize(row['text'], add_bos=False)], **override)
                self.assertEqual(sample['resps'][0][0], score.logprob)
            for sample, row in zip(self.another_p['lssar_generate'], rows('generate'), strict=True):
                [answer] = client.complete(row['question'], max_tokens=MAX_GEN_TOKS, temperature=0,
                                           stop_strings=['.', '\n\n'], **override)
                self.assertEqual(sample['resps'][0][0], answer.text)

    def test_arguments_that_cannot_be_served_are_errors(self):
        for error, sentence in zip(self.errors, (
                'server takes 1 to 16383', 'max_lenght', r"generation arguments \['num_beams'\]",
                f'max_gen_toks is {MAX_GEN_TOKS}: it must be less than max_length',
                'scores texts and token ids, not chats',
                r'^document \d of the task lssar_generate: ', '--allow-attention-override'),
                strict=True):
            self.assertRegex(error, sentence)


class HttpEqualsGrpcTest(unittest.TestCase):
    """lm-eval's own `local-completions`, with the arguments that `lssar info` prints, gives the
    numbers of the model `lssar` for every kind of task: cut texts, empty contexts, several windows.
    """

    BLANK = '''
import json, sys
from lm_eval.api.instance import Instance
import lssar.lm_eval
model = lssar.lm_eval.LssarLM(sys.argv[1], max_length=int(sys.argv[2]))
print(json.dumps(model.loglikelihood(
    [Instance('loglikelihood', {}, ('  ', text), i)
     for i, text in enumerate(json.loads(sys.argv[3]))], disable_tqdm=True)))
'''
    BEHIND_SPACE = 'the cat', 'the cat and the dog sat on the old house'
    MAX_MODEL_LEN = 48
    # Tokens of a context, which 8 follow: most where they fill a window, or two.
    LENGTHS = (0, 1, 2, 20, *range(36, 46), 86, 88, 90, 100)
    FORMS = {
        'word': "output_type: loglikelihood\ndoc_to_text: context\n"
                "doc_to_target: last\nmetric_list: [{metric: acc}, {metric: perplexity}]\n",
        'choice': "output_type: multiple_choice\ndoc_to_text: context\ndoc_to_target: 0\n"
                  "doc_to_choice: choices\nmetric_list: [{metric: acc}, {metric: acc_norm}]\n",
        'rolling': "output_type: loglikelihood_rolling\ndoc_to_text: ''\n"
                   "doc_to_target: text\nmetric_list: [{metric: bits_per_byte}]\n",
        'generate': "output_type: generate_until\ndoc_to_text: context\n"
                    "doc_to_target: last\ngeneration_kwargs: {until: [' the'], "
                    "max_gen_toks: 9}\nmetric_list: [{metric: exact_match}]\n"}

    @classmethod
    def setUpClass(cls):
        python = cls.python = environment('foreign')
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        flags = '--max-model-len', str(cls.MAX_MODEL_LEN)
        servers = cls.servers = [
            cls.enterClassContext(RunningServer(*flags, model=model))
            for model in (MODEL, cls.without_bos(folder / 'no-bos'),
                          cls.without_bos(folder / 'no-bos-id', has_id=False))]
        tasks = folder / 'tasks'
        tasks.mkdir()
        with Client(servers[0].address, timeout_s=120) as client:
            cls.write_tasks(tasks, client)
        runs = [{'tasks': [f'equal_{kind}' for kind in cls.FORMS], 'model': model,
                 'model_args': arguments}
                for server in servers for model, arguments in cls.arguments(server)]
        done = run(python, HERE / 'run_lm_eval.py', tasks, json.dumps(runs),
                   env=isolated(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1', OPENAI_API_KEY='none',
                                HF_HOME=str(folder / 'hf')))
        outcomes = json.loads(done.stdout.splitlines()[-1])
        cls.with_bos, cls.no_bos, cls.no_bos_id = outcomes[:2], outcomes[2:4], outcomes[4:]

    @staticmethod
    def without_bos(folder, has_id=True):
        """The shipped checkpoint, as one that was trained without BOS; not has_id: that names no
        such token at all. -> its path."""
        shutil.copytree(MODEL, folder, symlinks=True)
        for name in 'tokenizer_config.json', 'config.json':
            config = json.loads((folder / name).read_text(encoding='utf-8'))
            if name == 'tokenizer_config.json':
                config['add_bos_token'] = False
            if not has_id:
                config = {field: value for field, value in config.items()
                          if field not in ('bos_token', 'bos_token_id')}
            (folder / name).unlink()
            (folder / name).write_text(json.dumps(config))
        return str(folder)

    @classmethod
    def write_tasks(cls, folder, client):
        """Texts of 0 to 100 tokens, for windows of 48."""
        held_out = (pathlib.Path(MODEL) / 'held_out.bin').read_bytes()
        for kind, form in cls.FORMS.items():
            with open(folder / f'{kind}.jsonl', 'w', encoding='utf-8') as file:
                for i, length in enumerate(cls.LENGTHS):
                    start = 2 * 211 * i
                    ids = [int.from_bytes(held_out[at:at + 2], 'little')
                           for at in range(start, start + 2 * (length + 8), 2)]
                    context = client.detokenize(ids[:length]) if length else ''
                    rest = client.detokenize(ids[length:])
                    file.write(json.dumps({
                        'context': context, 'last': ' ' + rest, 'text': context + ' ' + rest,
                        'choices': [' ' + rest, ' and so on', ' 1984.']}) + '\n')
            (folder / f'{kind}.yaml').write_text(
                f'task: equal_{kind}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: '
                f'{folder}/{kind}.jsonl}}}}\ntest_split: test\n{form}')

    @staticmethod
    def arguments(server):
        """(model, its arguments) for gRPC and for HTTP, as `lssar info` prints them."""
        info = run(CLI, 'info', '--server', server.address).stdout
        arguments = {line.split()[line.split().index('--model') + 1]:
                     line.split()[line.split().index('--model_args') + 1]
                     for line in info.splitlines() if '--model_args' in line}
        http = arguments['local-completions']
        if f'http://{server.http_address}/' not in http:
            raise AssertionError(http)
        return ('lssar', arguments['lssar']), ('local-completions', http)

    def compare(self, outcomes):
        """Those of gRPC and of HTTP. -> the largest difference of a log-likelihood."""
        self.assertEqual([outcome.get('error') for outcome in outcomes], [None, None])
        expected, found = (outcome['samples'] for outcome in outcomes)
        largest = 0.0
        for kind in self.FORMS:
            self.assertEqual(len(found[f'equal_{kind}']), len(self.LENGTHS))
            for one, other in zip(expected[f'equal_{kind}'], found[f'equal_{kind}'], strict=True):
                for mine, theirs in zip(one['resps'], other['resps'], strict=True):
                    mine, theirs = mine[0], theirs[0]
                    if kind == 'generate':
                        self.assertEqual(theirs, mine, one['doc_id'])
                        continue
                    if kind != 'rolling':
                        self.assertEqual(theirs[1], mine[1], one['doc_id'])  # greedy
                        mine, theirs = mine[0], theirs[0]
                    difference = abs(theirs - mine) / max(1.0, abs(mine))
                    self.assertLess(difference, 1e-6, (kind, one['doc_id']))
                    largest = max(largest, difference)
        return largest

    def test_a_checkpoint_that_was_trained_with_bos(self):
        print(f'largest relative difference {self.compare(self.with_bos):.2g}', end=' ', flush=True)

    def test_an_items_perplexity_is_its_log_likelihood(self):
        """As compare.py of deploy/evaluation takes it."""
        for sample in self.with_bos[0]['samples']['equal_word']:
            self.assertEqual(sample['perplexity'], sample['resps'][0][0][0])

    def test_a_checkpoint_that_was_trained_without_bos(self):
        self.compare(self.no_bos)

    def test_a_context_of_white_space_belongs_to_the_continuation(self):
        """Also in a text that may be longer than the window, which the client tokenises; and
        without BOS, where the server refuses such a context."""
        for server in self.servers[0], self.servers[2]:
            done = run(self.python, '-c', self.BLANK, server.address, str(MAX_LENGTH),
                       json.dumps(self.BEHIND_SPACE), env=isolated())
            found = json.loads(done.stdout.splitlines()[-1])
            with Client(server.address, timeout_s=120) as client:
                for text, result in zip(self.BEHIND_SPACE, found, strict=True):
                    ids = client.tokenize('  ' + text, add_bos=False)
                    [score] = client.score([client.get_info().eos_id], [ids])
                    self.assertEqual(result, [score.logprob, score.is_greedy])

    def test_a_checkpoint_without_a_bos_token(self):
        """Its EOS, which is the other's BOS, stands for an empty context."""
        self.compare(self.no_bos_id)
        for kind, samples in self.no_bos[0]['samples'].items():
            self.assertEqual([sample['resps'] for sample in self.no_bos_id[0]['samples'][kind]],
                             [sample['resps'] for sample in samples], kind)


if __name__ == '__main__':
    unittest.main()
