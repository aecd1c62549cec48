"""Out-of-band tensors from a process that prepares media: tensors of every kind arrive unchanged."""

import socket
import threading
from typing import Any

import numpy as np
import pytest

from assayline.engines.host.vllm.preparers import LARGE_BYTES, pack, receive, send

torch = pytest.importorskip("torch")


def carry(what: Any) -> Any:
    ours, theirs = socket.socketpair()
    sender = threading.Thread(target=lambda: send(theirs, pack(what)))  # a large tensor fills the channel
    sender.start()
    found = receive(ours)
    sender.join()
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64", "uint8"])
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (2, 3, 5), (3, LARGE_BYTES)])
def test_a_tensor_arrives_with_its_type_shape_and_values(dtype, shape):
    count = int(np.prod(shape))
    tensor = (torch.arange(count) % 3).to(getattr(torch, dtype)).reshape(shape)
    found = carry({"pixels": [tensor]})["pixels"][0]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found, tensor)


def test_views_and_marks_arrive_as_what_they_show():
    grid = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    sent = {"turned": grid.T, "every second": grid[:, ::2], "mark": slice(0, torch.tensor(1), None)}
    found = carry(sent)
    assert torch.equal(found["turned"], grid.T) and torch.equal(found["every second"], grid[:, ::2])
    assert found["mark"].stop.item() == 1
    found["turned"] += 1  # an engine may write to what it is given


def test_large_arrays_are_not_in_the_pickle():
    small, large = np.arange(10), np.zeros(LARGE_BYTES, np.uint8)
    parcel = pack([small, large])
    assert [len(piece) for piece in parcel[1:]] == [LARGE_BYTES]
    found = carry([small, large])
    assert np.array_equal(found[0], small) and np.array_equal(found[1], large)


def test_a_sender_that_is_gone_in_the_middle_is_an_end():
    ours, theirs = socket.socketpair()
    (head,) = pack("content")
    send(theirs, [head[:-3]])
    theirs.close()
    with pytest.raises(EOFError):
        receive(ours)
