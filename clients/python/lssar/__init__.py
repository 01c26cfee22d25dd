"""lssar: LSSAR models from Python.

    from lssar import LLM, SamplingParams
    llm = LLM('models/zoo/lssar-6m')                # a private server of this process
    print(llm.generate('The old house', SamplingParams(max_tokens=40, seed=1))[0].text)

`LLM` needs no running server. `Client` and `AsyncClient` are for one that runs.
"""

import pkgutil

# The generated messages (lssar.v1) may lie in another directory of sys.path.
__path__ = pkgutil.extend_path(__path__, __name__)

# pylint: disable=wrong-import-position
from lssar.llm import LLM, RequestOutput, SamplingParams  # noqa: E402
from lssar_client import *  # noqa: E402,F403
from lssar_client import __all__ as _client_names  # noqa: E402

__all__ = [*_client_names, 'LLM', 'RequestOutput', 'SamplingParams']
