"""Vectors in pieces, by threads."""

import threading

import numpy as np
import pytest
import torch

from coalmine.simulation.pieces import Threads


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 100])
def test_every_number_is_in_one_piece(count, length):
    seen, threads = np.zeros(length, dtype=np.int64), Threads(count)

    def mark(piece):
        assert piece.start % 10 == 0
        seen[piece] += 1

    threads.each(length, mark, piece=10)
    threads.close()
    assert (seen == 1).all()


def test_threads_work_at_once_with_one_of_torchs_each_and_end_when_told():
    threads, both, counts = Threads(2), threading.Barrier(2, timeout=10), []

    def meet(piece):
        both.wait()
        counts.append(torch.get_num_threads())

    before, torch_threads = threading.active_count(), torch.get_num_threads()
    try:
        threads.each(2, meet, piece=1)
        assert counts == [1, 1]
        assert threading.active_count() == before + 2
    finally:
        threads.close()
        torch.set_num_threads(torch_threads)
    assert threading.active_count() == before


@pytest.mark.parametrize("count", [1, 2])
def test_what_fails_in_a_piece_is_raised(count):
    def fail(piece):
        raise ValueError("no")

    threads = Threads(count)
    with pytest.raises(ValueError, match="no"):
        threads.each(3, fail, piece=1)
    threads.close()
