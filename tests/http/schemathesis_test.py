"""The server and /openapi.json agree: cases that schemathesis makes of it, good and bad, by a fixed
seed.

Run by ctest from the repository's root with LSSAR_SERVER, and with LSSAR_VENVS: where the packages
of tests/requirements-schemathesis.txt are installed, once. Skipped where PyPI cannot be reached.
LSSAR_NUM_CASES: of each path, of the random part; LSSAR_SEED. By hand, more of them:

    LSSAR_NUM_CASES=400 LSSAR_SEED=2 ctest --test-dir build/ci -V -R HttpSchemathesis
"""

import os
import pathlib
import sys
import tempfile
import unittest

from http_fixture import NAME, Server
import quick_models

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

import environments

NUM_CASES = os.environ.get("LSSAR_NUM_CASES", "15")
SEED = os.environ.get("LSSAR_SEED", "1")
KEY = "admin-key-of-sixteen"
MAX_MODEL_LEN = 64  # a chat without max_tokens fills it


class SchemathesisTest(unittest.TestCase):
    def test_every_path(self) -> None:
        python = environments.environment("schemathesis", has_client=False)
        keys = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.addCleanup(keys.close)
        keys.write(f'[root]\nkey = "{KEY}"\nrole = "admin"\n')
        keys.flush()
        server = Server("--api-keys", keys.name, "--max-model-len", str(MAX_MODEL_LEN),
                        "--allow-attention-override", model=quick_models.shallow())
        self.addCleanup(server.stop)
        bearer = f"Bearer {KEY}"
        info = server.request("GET", "/tokenizer_info", headers={"Authorization": bearer})
        with tempfile.TemporaryDirectory() as folder:  # schemathesis may write beside its caller
            output = environments.run(
                python, "-m", "schemathesis.cli", "run",
                f"http://{server.http_address}/openapi.json", "-H",
                f"Authorization: {bearer}", "--checks", "all", "--seed", SEED, "--max-examples",
                NUM_CASES, "--phases", "examples,coverage,fuzzing",
                "--suppress-health-check", "all", "--workers", "1", "--request-timeout", "60",
                "--continue-on-failure", "--warnings", "off", "--generation-database", "none",
                cwd=folder,
                env={  # alone: each request looks through it for proxies
                    "SCHEMATHESIS_HOOKS": str(HERE / "schemathesis_hooks.py"), "NO_COLOR": "1",
                    # Its tables of Unicode take two seconds to make.
                    "HYPOTHESIS_STORAGE_DIRECTORY": str(python.parents[1] / "hypothesis"),
                    "LSSAR_MODEL": NAME,
                    "LSSAR_VOCAB_SIZE": str(info.json()["vocab_size"])}).stdout
        print("\n".join(output.splitlines()[-25:]))
        self.assertEqual(server.request("GET", "/healthz").status, 200)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
