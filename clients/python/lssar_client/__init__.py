"""Client of the lssar inference server: `Client`, and `AsyncClient` for asyncio."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lssar_client.aio import AsyncClient, AsyncStream
    from lssar_client.client import Client, Stream
    from lssar_client.types import (
        Attention, AttentionOptions, AttentionOverride, CallOptions, Chat,
        ContinuationScore, Delta, EmbedOptions, Embedding, Finished, GenerateOptions,
        Generation, HeadStatistics, IntArray, Limits, LssarError, Message, Prompt, Receipt,
        Retry, RowAttention, SamplingOptions, ScoreItem, ScoreOptions, ServerInfo,
        ServerStats, SharingOptions, StageTimes, Started, Text, Timings, Tls, Token,
        TokenIds, Usage)

__all__ = [
    'AsyncClient', 'AsyncStream', 'Attention', 'AttentionOptions', 'AttentionOverride',
    'CallOptions', 'Chat', 'Client', 'ContinuationScore', 'Delta', 'EmbedOptions', 'Embedding',
    'Finished', 'GenerateOptions', 'Generation', 'HeadStatistics', 'IntArray', 'Limits',
    'LssarError', 'Message', 'Prompt', 'Receipt', 'Retry', 'RowAttention', 'SamplingOptions',
    'ScoreItem', 'ScoreOptions', 'ServerInfo', 'ServerStats', 'SharingOptions', 'StageTimes',
    'Started', 'Stream', 'Text', 'Timings', 'Tls', 'Token', 'TokenIds', 'Usage'
]

_MODULES = {'AsyncClient': 'aio', 'AsyncStream': 'aio', 'Client': 'client', 'Stream': 'client'}


def __getattr__(name: str) -> object:
    """Names are imported at their first use: lssar_client.checkpoints runs without gRPC."""
    if name not in __all__:
        raise AttributeError(f"module 'lssar_client' has no attribute '{name}'")
    return getattr(importlib.import_module(f'lssar_client.{_MODULES.get(name, "types")}'), name)
