"""The notebooks of examples/, executed; LLM under pytest-xdist. Needs PyPI once."""

import json
import os
import pathlib
import tempfile
import unittest

import environments

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / 'examples'


def outputs(path):
    """What each code cell shows: for each output its kind, and the lines of a text."""
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [[('text', len(output['text'])) if output['output_type'] == 'stream' else
             (output['output_type'], *sorted(output.get('data', ())))
             for output in cell['outputs']]
            for cell in cells if cell['cell_type'] == 'code']


class ExamplesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.python = environments.environment('examples')
        # It says so on stderr if it takes long to list the fonts, once for each user.
        environments.run(cls.python, '-c', 'import matplotlib.font_manager',
                         env=environments.isolated())
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def execute(self, name, *changes):
        """Executes a notebook, and compares what it shows with what the kept one shows.

        Args:
            changes: code and what is executed instead of it: fewer texts show the same.
        """
        kept, new = EXAMPLES / name, self.folder / name
        path = f'{pathlib.Path(os.environ["LSSAR_SERVER"]).parent}:{os.environ["PATH"]}'
        environments.run(self.python, HERE / 'run_notebook.py', kept, new, *changes,
                         env=environments.isolated(PATH=path))
        self.assertEqual(outputs(new), outputs(kept))
        figures = [output for cell in outputs(new) for output in cell if 'image/svg+xml' in output]
        self.assertEqual(len(figures), 1)

    def test_loss_by_length(self):
        self.execute('loss_by_length.ipynb', 'rows = [16, 8, 4, 4]', 'rows = [2, 2, 2, 2]',
                     'losses(length, 4, ', 'losses(length, 1, ')

    def test_attention_map(self):
        self.execute('attention_map.ipynb')

    def test_score_a_data_set(self):
        self.execute('score_a_data_set.ipynb')

    def test_passkey_grid(self):
        self.execute('passkey_grid.ipynb', 'trials = 3', 'trials = 1')

    def test_pytest_xdist(self):
        path = f'{pathlib.Path(os.environ["LSSAR_SERVER"]).parent}:{os.environ["PATH"]}'
        with tempfile.TemporaryDirectory() as texts:
            done = environments.run(
                self.python, '-m', 'pytest', '-p', 'no:cacheprovider', '-n', '2', '--dist', 'each',
                HERE / 'xdist_cases.py', cwd=EXAMPLES.parent,
                env=environments.isolated(PATH=path, LSSAR_TEXTS=texts))
            self.assertIn('6 passed', done.stdout)
            for seed in range(3):
                first, second = (pathlib.Path(texts, f'{seed}-gw{worker}').read_text()
                                 for worker in range(2))
                self.assertEqual(first, second)

    def test_every_notebook_is_executed_and_listed(self):
        names = {path.name for path in EXAMPLES.glob('*.ipynb')}
        readme = (EXAMPLES / 'README.md').read_text(encoding='utf-8')
        for name in names:
            self.assertTrue(hasattr(self, f'test_{name.removesuffix(".ipynb")}'), name)
            self.assertIn(f']({name})', readme)


if __name__ == '__main__':
    unittest.main()
