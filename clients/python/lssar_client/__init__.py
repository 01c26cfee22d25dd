"""Client of the lssar inference server; `Client` is all one needs for a start."""

from lssar_client.client import (Attention, Client, Continuation, Delta, Generation, LssarError,
                                 Message, RowAttention, ServerFacts, Stream, Tls, Token)

__all__ = ['Attention', 'Client', 'Continuation', 'Delta', 'Generation', 'LssarError', 'Message',
           'RowAttention', 'ServerFacts', 'Stream', 'Tls', 'Token']
