"""Client of the lssar inference server; `Client` is all one needs for a start."""

from lssar_client.client import (Client, Continuation, Delta, Generation, LssarError, Message,
                                 ServerFacts, Stream, Tls, Token)

__all__ = ['Client', 'Continuation', 'Delta', 'Generation', 'LssarError', 'Message', 'ServerFacts',
           'Stream', 'Tls', 'Token']
