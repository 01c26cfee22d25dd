"""lm-evaluation-harness from PyPI with the model `lssar`: its numbers are the engine's own."""

import json
import pathlib
import tempfile
import unittest

from environments import HERE, environment, isolated, run
from lssar_client import Client
from programs import RunningServer

MAX_LENGTH = 31  # a small window, so that texts of the tasks are longer
MAX_GEN_TOKS = 24  # as tasks/generate.yaml


def rows(task):
    """The documents of a task."""
    lines = (HERE / 'tasks' / f'{task}.jsonl').read_text(encoding='utf-8').splitlines()
    return [json.loads(line) for line in lines]


class LmEvalTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        python = environment('lm-eval')
        cls.server = cls.enterClassContext(RunningServer())
        cls.client = cls.enterClassContext(Client(cls.server.address, timeout_s=120))
        cls.scratch = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.python = python
        cls.samples = cls.evaluate('all', 'lssar_choice,lssar_rolling,lssar_generate')
        cls.short = cls.evaluate('short', 'lssar_choice,lssar_rolling,lssar_generate',
                                 f'max_length={MAX_LENGTH}')

    @classmethod
    def evaluate(cls, name, tasks, model_args='', *flags):
        """Runs lm-eval's program. -> {task: its samples in the documents' order}."""
        out = cls.scratch / name
        program = pathlib.Path(cls.python).parent / 'lssar-lm-eval'
        arguments = ','.join(filter(None, [f'server={cls.server.address}', model_args]))
        run(program, '--model', 'lssar', '--model_args', arguments, '--tasks', tasks,
            '--include_path', HERE / 'tasks', '--output_path', out, '--log_samples', *flags,
            env=isolated(HF_HUB_OFFLINE='1', HF_DATASETS_OFFLINE='1',
                         HF_HOME=str(cls.scratch / 'hf')))
        samples = {}
        for path in out.rglob('samples_*.jsonl'):
            task = path.name.removeprefix('samples_').rpartition('_')[0]
            lines = [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]
            samples[task] = sorted(lines, key=lambda line: line['doc_id'])
        return samples

    def test_log_likelihoods_are_those_of_score(self):
        samples = self.samples['lssar_choice']
        self.assertEqual(len(samples), len(rows('choice')))
        for sample, row in zip(samples, rows('choice')):
            scores = self.client.score(row['question'],
                                       [' ' + choice for choice in row['choices']])
            got = [(float(answer[0][0]), str(answer[0][1]) == 'True')
                   for answer in sample['resps']]
            self.assertEqual(got, [(score.logprob, score.is_greedy) for score in scores])
            best = max(range(len(scores)), key=lambda i: scores[i].logprob)
            self.assertEqual(sample['acc'], float(best == row['answer']))

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
            self.assertEqual([float(answer[0][0]) for answer in sample['resps']], expected)
        self.assertEqual(set(is_truncated), {False, True})

    def test_rolling_windows_cover_each_token_once(self):
        bos = self.client.get_info().bos_id
        num_windows = []
        for samples, max_length in (self.samples, 16383), (self.short, MAX_LENGTH):
            for sample, row in zip(samples['lssar_rolling'], rows('rolling')):
                ids = [bos, *self.client.tokenize(row['text'], add_bos=False)]
                total = 0.0
                scored = 1
                windows = 0
                while scored < len(ids):
                    end = min(len(ids), scored + max_length)
                    first = max(0, end - max_length - 1)
                    [score] = self.client.score(ids[first:scored], [ids[scored:end]])
                    total += score.logprob
                    scored = end
                    windows += 1
                num_windows.append(windows)
                self.assertEqual(float(sample['resps'][0][0]), total)
        self.assertEqual(max(num_windows[:len(num_windows) // 2]), 1)
        self.assertGreater(max(num_windows), 1)

    def test_generations_end_before_the_stop_string(self):
        for samples, most in (self.samples, 16384), (self.short, MAX_LENGTH + 1):
            for sample, row in zip(samples['lssar_generate'], rows('generate')):
                prompt = self.client.tokenize(row['question'])[-(most - MAX_GEN_TOKS):]
                [answer] = self.client.complete(prompt, max_tokens=MAX_GEN_TOKS, temperature=0)
                text = answer.text.split('.')[0].split('\n\n')[0]
                self.assertEqual(sample['resps'][0][0], text)

    def test_chats_go_through_the_servers_template(self):
        samples = self.evaluate('chat', 'lssar_generate', '', '--apply_chat_template')
        for sample, row in zip(samples['lssar_generate'], rows('generate')):
            [answer] = self.client.complete([('user', row['question'])], max_tokens=MAX_GEN_TOKS,
                                            temperature=0, stop_strings=['.', '\n\n'])
            self.assertEqual(sample['resps'][0][0], answer.text)

    def test_arguments_that_cannot_be_served_are_errors(self):
        for arguments, sentence in (('max_length=16384', 'server takes 1 to 16383'),
                                    ('max_lenght=5', 'max_lenght')):
            with self.assertRaisesRegex(AssertionError, sentence):
                self.evaluate('wrong', 'lssar_generate', arguments)
        with self.assertRaisesRegex(AssertionError, r"generation arguments \['num_beams'\]"):
            self.evaluate('wrong', 'lssar_generate', '', '--gen_kwargs', 'num_beams=4')
        with self.assertRaisesRegex(AssertionError, 'scores texts and token ids, not chats'):
            self.evaluate('wrong', 'lssar_choice', '', '--apply_chat_template')


if __name__ == '__main__':
    unittest.main()
