"""deploy/docs.sh builds the documentation site, with strict checks of its links."""

import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests' / 'python'))

import environments  # noqa: E402


class DocsTest(unittest.TestCase):

    def test_the_site_builds_and_every_link_leads_somewhere(self):
        python = environments.environment('docs', has_client=False)
        built = subprocess.run(['sh', 'deploy/docs.sh', '--build'], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                               env={**os.environ, 'LSSAR_DOCS_PYTHON': str(python)})
        self.assertEqual(built.returncode, 0, built.stdout)
        site = ROOT / 'build/docs/site'

        def page(path):
            return (site / path).read_text(encoding='utf-8')

        self.assertIn('LSSAR', page('index.html'))
        self.assertIn('CaptureAttention', page('reference/grpc.html'))
        self.assertIn('SamplingParams', page('reference/python.html'))
        self.assertIn('--kv-cache-dtype', page('reference/lssar-server.html'))
        self.assertIn('--trials', page('reference/lssar.html'))
        self.assertIn('swagger', page('reference/http.html'))


if __name__ == '__main__':
    unittest.main()
