"""Many items, a bounded number at a time. Shared by both clients."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sized
from typing import Generic, Protocol, TypeVar

from lssar.v1 import inference_pb2 as pb
from lssar import _requests, types
from lssar._extras import how_to_install

# One call's share: enough to keep the engine's batch full, and results come as they are known.
ITEMS_PER_CALL = 64
CONTINUATIONS_PER_CALL = 1024  # the server's limit for one item
BYTES_PER_CALL = 1 << 20
TOKEN_VECTOR_BYTES_PER_CALL = 1 << 14  # where each token of an input becomes a vector
CALLS_IN_FLIGHT = 2  # the next call is queued while the results of one are read


@dataclasses.dataclass
class Part:
    """The items of one call. The last may be a part of an item that the next call continues."""

    items: list[pb.ScoreItem] = dataclasses.field(default_factory=list)
    is_complete: list[bool] = dataclasses.field(default_factory=list)  # of each item
    num_continuations: int = 0
    num_bytes: int = 0

    def has_space_for(self, item: pb.ScoreItem) -> bool:
        """True unless `item` would pass a limit. An empty part has space for anything."""
        return not self.items or (
            len(self.items) < ITEMS_PER_CALL
            and self.num_continuations + len(item.continuations) <= CONTINUATIONS_PER_CALL
            and self.num_bytes + item.ByteSize() <= BYTES_PER_CALL)

    def add(self, item: pb.ScoreItem, is_complete: bool) -> None:
        """Appends `item`."""
        self.items.append(item)
        self.is_complete.append(is_complete)
        self.num_continuations += len(item.continuations)
        self.num_bytes += item.ByteSize()


def split(item: pb.ScoreItem) -> Iterator[tuple[pb.ScoreItem, bool]]:
    """Yields `item` in pieces that the server takes, and whether a piece is the last."""
    total = len(item.continuations)
    if total <= CONTINUATIONS_PER_CALL:
        yield item, True
        return
    for first in range(0, total, CONTINUATIONS_PER_CALL):
        end = min(total, first + CONTINUATIONS_PER_CALL)
        yield pb.ScoreItem(context=item.context,
                           continuations=item.continuations[first:end]), end == total


class Parts:
    """Groups items into calls: add() each, then rest()."""

    def __init__(self) -> None:
        self._part = Part()

    def add(self, item: pb.ScoreItem) -> Iterator[Part]:
        """Yields the parts that became full."""
        for piece, is_complete in split(item):
            if not self._part.has_space_for(piece):
                full, self._part = self._part, Part()
                yield full
            self._part.add(piece, is_complete)

    def rest(self) -> Iterator[Part]:
        """Yields what is left, if anything."""
        if self._part.items:
            yield self._part
            self._part = Part()


class Joiner:
    """Joins the results of the parts, and checks that one checkpoint scored them all."""

    def __init__(self) -> None:
        self._scores: list[types.ContinuationScore] = []
        self._checkpoint = _requests.CheckpointCheck()

    def join(self, part: Part, results: Iterable[list[types.ContinuationScore]],
             checkpoint_hash: str) -> Iterator[list[types.ContinuationScore]]:
        """Yields the scores of each item that is complete. Errors: LssarError ABORTED."""
        self._checkpoint.check(checkpoint_hash)
        for scores, is_complete in zip(results, part.is_complete, strict=True):
            self._scores += scores
            if is_complete:
                joined, self._scores = self._scores, []
                yield joined


class ScoredPart:
    """Collects the replies to the call of one part."""

    def __init__(self, part: Part, request: pb.ScoreRequest, joiner: Joiner) -> None:
        self._part = part
        self._request = request
        self._joiner = joiner
        self.restart()

    def restart(self) -> None:
        """Forgets all replies."""
        self._replies = _requests.ScoreReplies(self._request)

    def add(self, reply: pb.ScoreReply) -> None:
        """Takes one reply."""
        self._replies.add(reply)

    def results(self) -> Iterable[list[types.ContinuationScore]]:
        """The scores of each item that is complete. Errors: those of ScoreReplies; ABORTED."""
        return self._joiner.join(self._part, self._replies.results(),
                                 self._replies.checkpoint_hash)


class InputGroups:
    """Groups inputs of embed_many() into calls: add() each, then rest()."""

    def __init__(self, options: types.EmbedOptions) -> None:
        layers = options.get('layers')
        num_layers = 1 if layers is None else len(_requests.token_ids(layers, 'layers'))
        self._max_bytes = (TOKEN_VECTOR_BYTES_PER_CALL // num_layers
                           if options.get('pooling') == 'token' else BYTES_PER_CALL)
        self._group: list[pb.TextOrTokens] = []
        self._num_bytes = 0
        self._num_added = 0

    def add(self, text: types.Text) -> Iterator[list[pb.TextOrTokens]]:
        """Yields the group that became full, if one did. A group has an input or more."""
        message = _requests.text_or_tokens(text, f'inputs[{self._num_added}]')
        self._num_added += 1
        num_bytes = message.ByteSize()
        if self._group and (len(self._group) == ITEMS_PER_CALL
                            or self._num_bytes + num_bytes > self._max_bytes):
            yield from self.rest()
        self._group.append(message)
        self._num_bytes += num_bytes

    def rest(self) -> Iterator[list[pb.TextOrTokens]]:
        """Yields what is left, if anything."""
        if self._group:
            group, self._group, self._num_bytes = self._group, [], 0
            yield group


T = TypeVar('T')
ReplyOfCall = TypeVar('ReplyOfCall', contravariant=True)
ResultOfCall = TypeVar('ResultOfCall', covariant=True)


class Collector(Protocol[ReplyOfCall, ResultOfCall]):
    """Makes results of the replies to one call."""

    def add(self, reply: ReplyOfCall) -> None:
        """Takes one reply."""

    def restart(self) -> None:
        """Forgets all replies."""

    def results(self) -> Iterable[ResultOfCall]:
        """Returns the results, after the last reply."""


class Progress(Generic[T]):
    """A tqdm bar over `values`, or nothing. Errors: ImportError that names what to install."""

    def __init__(self, values: object, is_shown: bool, name: str) -> None:
        self._bar = None
        if is_shown:
            try:
                from tqdm import tqdm
            except ImportError:
                raise ImportError('progress=True needs tqdm: '
                                  + how_to_install('progress')) from None
            self._bar = tqdm(desc=name, total=len(values) if isinstance(values, Sized) else None,
                             unit='item')

    def count(self, result: T) -> T:
        """Advances by one. Returns `result`."""
        if self._bar is not None:
            self._bar.update()
        return result

    def close(self) -> None:
        """Ends the bar."""
        if self._bar is not None:
            self._bar.close()


def check_items(items: object, method: str, example: str) -> None:
    """Errors: TypeError where `items` is one item instead of many."""
    if isinstance(items, _requests.STRINGS) or not (isinstance(items, Iterable)
                                               or hasattr(items, '__aiter__')):
        raise TypeError(f'{method}() takes {example}, not {items!r}')
