"""lssar: LSSAR models from Python.

    from lssar import LLM, SamplingParams
    llm = LLM('models/zoo/lssar-6m')                # a private server of this process
    print(llm.generate('The old house', SamplingParams(max_tokens=40, seed=1))[0].text)

`LLM` needs no running server. `Client`, `AsyncClient` and the other names of lssar_client are for
one that runs.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

# The generated messages (lssar.v1) may lie in another directory of sys.path.
__path__ = pkgutil.extend_path(__path__, __name__)

if TYPE_CHECKING:
    from lssar.llm import LLM as LLM
    from lssar.llm import RequestOutput as RequestOutput
    from lssar.llm import SamplingParams as SamplingParams
    from lssar_client import *  # noqa: F403

_OWN = ('LLM', 'RequestOutput', 'SamplingParams')


def __getattr__(name: str) -> object:
    """Names are imported at their first use: lssar_client itself imports lssar.v1, and so this."""
    if name in _OWN:
        return getattr(importlib.import_module('lssar.llm'), name)
    client = importlib.import_module('lssar_client')
    if name == '__all__':
        return [*client.__all__, *_OWN]
    if name in client.__all__:
        return getattr(client, name)
    raise AttributeError(f"module 'lssar' has no attribute '{name}'")
