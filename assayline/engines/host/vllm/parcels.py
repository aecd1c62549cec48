"""Parcels: how prepared media cross from the process that prepared them to the engine's.

A pickle, with tensors as they lie in memory. torch's own pickles write each tensor as a file with a head and a tail,
which takes longer than a small picture's preparation, for thumbnails and for the masks of one number that come with
every picture; multiprocessing's way shares them by file descriptors, which run out. Large tensors travel behind the
pickle and are read straight into the memory in which they stay.
"""

import io
import pickle
import socket
import struct
from collections.abc import Sequence
from typing import Any

LARGE_BYTES = 2**16
"""A tensor of this size travels behind the pickle; a smaller one in it, as each piece costs a call."""

LARGEST_PICKLE_BYTES = 2**18
"""Of a parcel that is not large: a fraction of a millisecond."""

_HEAD = struct.Struct("=QQ")
"""Bytes of the table of large pieces, and of the pickle."""

Parcel = list[bytes | memoryview]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        import torch

        if type(obj) is not torch.Tensor or obj.device.type != "cpu" or obj.layout is not torch.strided:
            return NotImplemented
        flat = obj.detach().contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        return _restore_tensor, (pickle.PickleBuffer(flat.numpy()), obj.dtype, tuple(obj.shape))


def _restore_tensor(content: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    if not len(content):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(content, dtype=dtype).reshape(shape)


def pack(what: Any) -> Parcel:
    """What `send` takes. Raises whatever pickling raises."""
    large: list[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes < LARGE_BYTES:
            return True
        large.append(content)
        return False

    pickled = io.BytesIO()
    _Pickler(pickled, pickle.HIGHEST_PROTOCOL, buffer_callback=keep).dump(what)
    table = struct.pack(f"={len(large)}Q", *(content.nbytes for content in large))
    return [_HEAD.pack(len(table), pickled.tell()) + table + pickled.getbuffer(), *large]


def send(channel: socket.socket, parcel: Sequence[bytes | memoryview]) -> None:
    """Raises OSError where nobody is left to take it."""
    for piece in parcel:
        channel.sendall(piece)


def is_large(channel: socket.socket) -> bool | None:
    """Whether reading what comes next will take a while; None where nothing has come. Raises EOFError."""
    try:
        head = channel.recv(_HEAD.size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    if not head:
        raise EOFError
    if len(head) < _HEAD.size:
        return None
    table_bytes, pickle_bytes = _HEAD.unpack(head)
    return bool(table_bytes) or bool(pickle_bytes > LARGEST_PICKLE_BYTES)


def receive(channel: socket.socket) -> Any:
    """What was packed. Raises EOFError where the other side is gone, and what unpickling raises."""
    table_bytes, pickle_bytes = _HEAD.unpack(_read(channel, _HEAD.size))
    content = memoryview(_read(channel, table_bytes + pickle_bytes))
    sizes = struct.unpack(f"={table_bytes // 8}Q", content[:table_bytes])
    return pickle.loads(content[table_bytes:], buffers=[_read(channel, size) for size in sizes])


def _read(channel: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    rest = memoryview(content)
    while rest:
        count = channel.recv_into(rest, 0, socket.MSG_WAITALL)
        if not count:
            raise EOFError
        rest = rest[count:]
    return content
