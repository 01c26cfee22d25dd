"""The header by which a load balancer sends requests of one prefix to one server. Shared by both
clients; clients/cli/prefix_key.h computes the same."""

from __future__ import annotations

import hashlib

from lssar.v1 import inference_pb2 as pb

KeyedRequest = (pb.GenerateRequest | pb.ScoreRequest | pb.EmbedRequest
                | pb.CaptureAttentionRequest)

HEADER = 'x-lssar-prefix'
NUM_BYTES = 256  # of a text
NUM_IDS = 64  # of token ids


def _of_text(text: str) -> bytes:
    return text[:NUM_BYTES].encode()[:NUM_BYTES]


def _of_ids(ids: pb.TokenIds) -> bytes:
    return ', '.join(map(str, ids.ids[:NUM_IDS])).encode()


def _of_text_or_tokens(text: pb.TextOrTokens) -> bytes:
    return _of_ids(text.tokens) if text.HasField('tokens') else _of_text(text.text)


def _of_chat(chat: pb.Chat) -> bytes:
    """Up to the first message of the user, so that all turns of a conversation have one key."""
    content = ''
    for message in chat.messages:
        content += message.content
        if message.role == 'user' or len(content.encode()) >= NUM_BYTES:
            break
    return _of_text(content)


def prefix_key(request: KeyedRequest) -> str:
    """The first 16 hex digits of the SHA-256 of the request's cache_salt and its beginning: the
    first 256 bytes of a text, the first 64 ids in decimal with ', ' between them, the messages
    of a chat up to the user's first. Several items: the first one's.
    """
    if isinstance(request, pb.ScoreRequest):
        beginning = b''
        if request.items:
            item = request.items[0]
            beginning = _of_text_or_tokens(item.context) or (
                _of_text_or_tokens(item.continuations[0]) if item.continuations else b'')
    elif isinstance(request, pb.EmbedRequest):
        beginning = _of_text_or_tokens(request.inputs[0]) if request.inputs else b''
    elif request.HasField('tokens'):
        beginning = _of_ids(request.tokens)
    elif request.HasField('chat'):
        beginning = _of_chat(request.chat)
    else:
        beginning = _of_text(request.text)
    return hashlib.sha256(request.cache_salt.encode() + beginning).hexdigest()[:16]
