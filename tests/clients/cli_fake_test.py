"""`lssar passkey` against a service that refuses, forgets and counts."""

import json
import random
import sys
import unittest

from fake_server import FakeService, RunningFake
from programs import run_cli

sys.path.insert(0, 'models/training')
import passkey  # noqa: E402


class PasskeyTest(unittest.TestCase):

    def run_passkey(self, service, *flags):
        with RunningFake(service) as fake:
            done = run_cli('passkey', '--server', fake.address, *flags, '--json', model=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_asks_what_the_reference_asks(self):
        service = FakeService()
        self.run_passkey(service, '--lengths', '300,4000', '--trials', '5', '--seed', '11')
        unit = len(passkey.FILL)  # a byte is a token here
        expected = []
        for length in 300, 4000:
            rng = random.Random(11)
            for _ in range(5):
                expected.append(passkey.make(max(0, (length - 20 - 110) // unit), rng)[0])
        self.assertCountEqual(service.prompts, expected)

    def test_chosen_depths_are_the_references(self):
        service = FakeService()
        self.run_passkey(service, '--lengths', '2000', '--trials', '2', '--depths', '0,0.5,1')
        rng = random.Random(7)
        num_filler = (2000 - 20 - 110) // len(passkey.FILL)
        self.assertCountEqual(service.prompts, [passkey.make(num_filler, rng, depth=depth)[0]
                                                for depth in (0, 0, 0.5, 0.5, 1, 1)])

    def test_waits_while_the_queue_is_full(self):
        reply = self.run_passkey(FakeService(num_refusals=7), '--lengths', '500', '--trials', '6')
        self.assertEqual(reply['lengths'][0]['num_hits'], 6)

    def test_asks_as_many_at_once_as_told(self):
        service = FakeService()
        self.run_passkey(service, '--lengths', '500', '--trials', '40', '--concurrency', '3')
        self.assertLessEqual(service.most_at_once, 3)

    def test_misses_are_counted_where_they_happen(self):
        early = FakeService(knows=lambda prompt: prompt.index('The pass key is') < 1000)
        reply = self.run_passkey(early, '--lengths', '4000', '--trials', '3', '--depths', '0,1')
        self.assertEqual([(cell['depth'], cell['num_hits'], cell['num_trials'])
                          for cell in reply['cells']], [('0%', 3, 3), ('100%', 0, 3)])
        self.assertEqual(reply['lengths'][0]['accuracy'], 0.5)


if __name__ == '__main__':
    unittest.main()
