"""Client of the lssar inference server: `Client`, and `AsyncClient` for asyncio."""

from lssar_client.aio import AsyncClient, AsyncStream
from lssar_client.client import Client, Stream
from lssar_client.types import (Attention, AttentionOptions, AttentionOverride, CallOptions, Chat,
                                ContinuationScore, Delta, EmbedOptions, Embedding, Finished,
                                GenerateOptions, Generation, HeadStatistics, IntArray, Limits,
                                LssarError, Message, Prompt, Receipt, Retry, RowAttention,
                                SamplingOptions, ScoreItem, ScoreOptions, ServerInfo, ServerStats,
                                SharingOptions, StageTimes, Started, Text, Timings, Tls, Token,
                                TokenIds, Usage)

__all__ = [
    'AsyncClient', 'AsyncStream', 'Attention', 'AttentionOptions', 'AttentionOverride',
    'CallOptions', 'Chat', 'Client', 'ContinuationScore', 'Delta', 'EmbedOptions', 'Embedding',
    'Finished', 'GenerateOptions', 'Generation', 'HeadStatistics', 'IntArray', 'Limits',
    'LssarError', 'Message', 'Prompt', 'Receipt', 'Retry', 'RowAttention', 'SamplingOptions',
    'ScoreItem', 'ScoreOptions', 'ServerInfo', 'ServerStats', 'SharingOptions', 'StageTimes',
    'Started', 'Stream', 'Text', 'Timings', 'Tls', 'Token', 'TokenIds', 'Usage'
]
