"""lssar: LSSAR models from Python.

    from lssar import LLM, SamplingParams
    llm = LLM('models/zoo/lssar-6m')                # a private server of this process
    print(llm.generate('The old house', SamplingParams(max_tokens=40, seed=1))[0].text)

`LLM` needs no running server. `Client`, and `AsyncClient` for asyncio, call one that runs.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING

# The generated messages (lssar.v1) may lie in another directory of sys.path.
__path__ = pkgutil.extend_path(__path__, __name__)

if TYPE_CHECKING:
    __version__: str
    from lssar.aio import AsyncClient, AsyncStream
    from lssar.client import Client, Stream
    from lssar.llm import LLM, RequestOutput
    from lssar.types import (
        Attention, AttentionOptions, AttentionOverride, AttentionPower, AttentionPowerStep,
        CallOptions, Chat, ContinuationScore, Delta, Distributions, EmbedOptions, Embedding,
        Finished, GenerateOptions, Generation, HeadStatistics, HiddenStates, IntArray, Limits,
        LssarError, Message, Prompt, Receipt, Retry, RowAttention, SamplingOptions,
        SamplingParams, SchedulingOptions, ScoreItem, ScoreOptions, ServerInfo, ServerStats,
        StageTimes, Started, Steering, Text, Timings, Tls, Token, TokenIds, Usage)

__all__ = [
    'AsyncClient', 'AsyncStream', 'Attention', 'AttentionOptions', 'AttentionOverride',
    'AttentionPower', 'AttentionPowerStep', 'CallOptions', 'Chat', 'Client', 'ContinuationScore',
    'Delta', 'Distributions', 'EmbedOptions', 'Embedding', 'Finished', 'GenerateOptions',
    'Generation', 'HeadStatistics', 'HiddenStates', 'IntArray', 'LLM', 'Limits', 'LssarError',
    'Message', 'Prompt', 'Receipt', 'RequestOutput', 'Retry', 'RowAttention', 'SamplingOptions',
    'SamplingParams', 'SchedulingOptions', 'ScoreItem', 'ScoreOptions', 'ServerInfo', 'ServerStats',
    'StageTimes', 'Started', 'Steering', 'Stream', 'Text', 'Timings', 'Tls', 'Token', 'TokenIds',
    'Usage'
]

_MODULES = {'AsyncClient': 'aio', 'AsyncStream': 'aio', 'Client': 'client', 'Stream': 'client',
            'LLM': 'llm', 'RequestOutput': 'llm'}


def __getattr__(name: str) -> object:
    """Names are imported at their first use: lssar.checkpoints runs without gRPC."""
    if name == '__version__':
        return _version()
    if name not in __all__:
        raise AttributeError(f"module 'lssar' has no attribute '{name}'")
    return getattr(importlib.import_module(f'lssar.{_MODULES.get(name, "types")}'), name)


def _version() -> str:
    """That of the installed package. AttributeError: it runs from its source folder."""
    import importlib.metadata
    try:
        return importlib.metadata.version('lssar')
    except importlib.metadata.PackageNotFoundError as error:
        raise AttributeError('lssar is not an installed package: it has no version') from error
