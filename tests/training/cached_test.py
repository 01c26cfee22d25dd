"""The PyTorch model with a KV cache (the peer of tests/gpu) equals the full forward."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch

import recipe  # noqa: F401
import checkpoint_files
import model

GPU = pathlib.Path('tests/gpu').resolve()
sys.path.insert(0, str(GPU))

import cached_model  # noqa: E402

CONFIG = model.Config(vocab_size=50, n_layer=2, n_head=2, n_embd=32, n_ctx=64, p=15)


class CachedModelTest(unittest.TestCase):

    def test_prefill_and_steps_equal_the_full_forward(self):
        torch.manual_seed(3)
        net = model.GPT(CONFIG).double().eval()
        tokens = torch.randint(50, (3, 340))
        with torch.no_grad():
            expected = net(tokens)
            for first in 1, 2, 5, 300:  # 300: more than a block of rows
                cached = cached_model.CachedModel(net, 3, 350)
                found = [cached.prefill(tokens[:, :first])]
                for i in range(first, min(first + 40, 340)):
                    found.append(cached.step(tokens[:, i], torch.tensor([i])))
                for i, logits in enumerate(found):
                    error = (logits - expected[:, first - 1 + i]).abs().max()
                    self.assertLess(error, 1e-9, (first, i))

    def test_the_bench_runs_on_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint_files.write_model(model.GPT(CONFIG), folder, 'F16')
            out = pathlib.Path(folder) / 'rows.json'
            subprocess.run(
                [sys.executable, '-B', GPU / 'peers_model.py', folder, out, '--device', 'cpu',
                 '--seconds', '0', '--prompt', '20', '--depths', '0,30', '--batch', '4',
                 '--batch-depth', '8'], timeout=300, check=True)
            rows = json.loads(out.read_text())
        works = {(row['work'], row['batch'], row['depth']) for row in rows
                 if row['peer'] == 'torch eager'}
        self.assertEqual(works, {('decode', 1, 0), ('decode', 1, 30), ('prefill', 1, 20),
                                 ('decode', 4, 8)})
        self.assertTrue(all(row['tokens_per_s'] > 0 for row in rows if 'tokens_per_s' in row))
        self.assertEqual(sum(row['peer'] == 'torch compile' for row in rows), 4)


if __name__ == '__main__':
    unittest.main()
