"""A design pool in temporary files is the pool in memory, to the bit."""

import errno
import gc
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

from canary_models import CLIP, designed
from coalmine.errors import InputError
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.pool_storage import UpdateStore

SHAPES = [(4, 2, 3, 3), (30, 5), (7,), (6, 6), (2, 1, 2, 2)]
TINY = 1e-9  # GiB: less than one update


def updates(count=6):
    """Updates with unused taps of a kernel, unused rows of a table, and a kernel that is never used."""
    draw = torch.Generator().manual_seed(0)
    for number in range(count):
        pieces = [torch.randn(shape, generator=draw) for shape in SHAPES]
        pieces[0][:, :, 0] = 0
        pieces[1][3 + number :] = 0
        pieces[4].zero_()
        flat = torch.cat([piece.flatten() for piece in pieces])
        yield flat / flat.norm()


@pytest.mark.parametrize("memory", [TINY, 4e-6])  # from the start, and after some updates
def test_a_pool_on_disk_is_the_pool_in_memory(memory):
    here = Pool.of(updates(), SHAPES, clip_norm=1.0)
    there = Pool.of(updates(), SHAPES, clip_norm=1.0, pool_memory=memory)
    for one, other in zip(here.blocks, there.blocks, strict=True):
        assert one.rows.shape == other.rows.shape
        assert torch.equal(one.rows, other.rows)
        assert len(one.index) == len(other.index)
    vectors = torch.randn(2, here.dim, generator=torch.Generator().manual_seed(1))
    assert torch.equal(here.gram, there.gram)
    assert torch.equal(here.dots(vectors), there.dots(vectors))
    assert torch.equal(here.combined(vectors[:, : len(here)]), there.combined(vectors[:, : len(here)]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_updates_of_any_type_are_kept_as_float32(dtype):
    update = torch.linspace(-1, 1, 12).to(dtype)
    for memory in (4.0, TINY):
        (block,) = Pool.of([update], [(12,)], clip_norm=4.0, pool_memory=memory).blocks
        assert torch.equal(block.rows[0], update.float())


def test_canaries_designed_with_a_pool_on_disk_are_the_same_and_no_file_remains(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = []
    for memory in (4.0, TINY):
        canaries = designed(1, pool_memory=memory, iterations=3)
        canaries.design(None, clip_norm=CLIP, round=0)
        made.append((canaries.samples[0], canaries.crafted(None, clip_norm=CLIP).directions))
    assert np.array_equal(made[0][0], made[1][0])
    assert np.array_equal(made[0][1], made[1][1])
    del canaries
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error_that_says_what_to_do(monkeypatch):
    class FullDisk:
        name = "/scratch/coalmine-pool-1/0"

        def write(self, numbers):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: FullDisk())
    with pytest.raises(InputError, match=r"does not fit into /scratch .No space left.*fewer mock clients.*TMPDIR"):
        Pool.of(updates(), SHAPES, clip_norm=1.0, pool_memory=TINY)


def test_memory_must_be_positive():
    with pytest.raises(InputError, match=r"pool_memory must be .*got 0"):
        designed(1, pool_memory=0)


def test_the_store_counts_what_it_has():
    store = UpdateStore([torch.Size(shape) for shape in SHAPES], TINY)
    for update in updates(3):
        store.add(update)
    assert len(store) == 3
    assert store.is_on_disk
