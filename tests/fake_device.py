"""A device that does not exist, to test that nothing is left on the CPU.

Importing this makes ``torch.device("fake")`` one more device. Its tensors compute on the CPU, but say that they are
elsewhere: an operation that mixes them with tensors on the CPU fails as it would on hardware, and so does reading one
as NumPy without moving it.
"""

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class FakeModule(_DummyBackendModule):
    """What would be ``torch.cuda``. It counts no devices, so that other tests do not find an accelerator."""

    def device_count(self):
        return 0


# torch's own way to write a device in Python.
_setup_privateuseone_for_python_backend("fake", backend_module=FakeModule())
FAKE = torch.device("fake:0")
# Lengths and batch sizes of packed sequences are on the CPU, as in torch.
_MOVES = (
    torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten._pack_padded_sequence.default,
)  # fmt: skip


class FakeTensor(torch.Tensor):
    """A tensor that says it is on `FAKE`; ``inner`` has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner):
        """Return a tensor of the shape of ``inner`` without numbers of its own."""
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=FAKE,
        )  # fmt: skip

    def __init__(self, inner):
        self.inner = inner

    def data_ptr(self):
        return self.inner.data_ptr()

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, value):
        self.inner = value.inner

    def __repr__(self, **_):
        return f"FakeTensor({self.inner})"

    def __deepcopy__(self, memo):
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied._is_param = True
        return copied

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        """Do an operation on the CPU, and return its results on the device that they would be on."""
        kwargs = dict(kwargs or {})
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        # Numbers without dimensions may stay on the CPU, as in torch.
        shapes = [tensor.shape for tensor in tensors if not isinstance(tensor, cls) and tensor.ndim]
        if shapes and function not in _MOVES:
            raise RuntimeError(f"{function} mixes tensors of {FAKE} with tensors of shapes {shapes} on the CPU")
        stays = torch.device(kwargs.get("device") or FAKE).type == FAKE.type
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, cls) else x, (args, kwargs))
        result = function(*inner_args, **inner_kwargs)
        if "out" in kwargs:
            return kwargs["out"]
        if function._schema.is_mutable:  # in place; a name such as __rshift__ does not tell
            return args[0] if isinstance(args[0], cls) else None
        if function is torch.ops.aten._pack_padded_sequence.default:
            return cls(result[0]), result[1]
        return tree_map(lambda x: cls(x) if stays and isinstance(x, torch.Tensor) else x, result)


def _empty(size, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None):
    return FakeTensor(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return FakeTensor(torch.empty_strided(size, stride, dtype=dtype))


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("empty.memory_format", _empty, "PrivateUse1")
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")


def _copy_from(source, target, non_blocking=False):
    inner = [value.inner if isinstance(value, FakeTensor) else value for value in (source, target)]
    inner[1].copy_(inner[0])
    return target


_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
