"""Records steps on a CPU as a GPU would: operation by operation, each with the memory that it read and wrote."""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


class Watching(TorchDispatchMode):
    """Does every operation, and notes those that compute something, with what they are given and what they give."""

    def __init__(self):
        super().__init__()
        self.operations, self.before, self.kept = [], {}, []

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        named = named or {}
        read = [one for one in tree_leaves((given, named)) if isinstance(one, torch.Tensor)]
        if operation is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("the host asks for a number")
        if operation._schema.is_mutable:
            for one in read:
                own = one.untyped_storage()
                self.before.setdefault(own.data_ptr(), (own, own.clone()))
        found = operation(*given, **named)
        written = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
        views = {storage(one) for one in read} & {storage(one) for one in written}
        if operation._schema.is_mutable or not views:
            self.operations.append((operation, given, named, written))
        self.kept += written  # no memory is given out twice
        return found


class OperationRecorder:
    """A recorder that replays operations. What a recorded step changed is undone: recording computes nothing."""

    def __init__(self):
        self.recordings = 0

    def aside(self):
        return contextlib.nullcontext()

    def record(self, step):
        self.recordings += 1
        watching = Watching()
        try:
            with watching:
                step()
        except RuntimeError:
            return None
        finally:
            for own, numbers in watching.before.values():
                own.copy_(numbers)

        def replay():
            with torch.no_grad():
                for operation, given, named, written in watching.operations:
                    found = operation(*given, **named)
                    if not operation._schema.is_mutable:
                        again = [one for one in tree_leaves(found) if isinstance(one, torch.Tensor)]
                        for one, other in zip(written, again, strict=True):
                            one.detach().copy_(other)

        return replay
