"""A trie holds the sequences it was made of."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coalmine.methods.secret_sharer.random_sampling import Trie
from phrase_models import toy_phrases


def test_a_trie_gives_its_sequences_back():
    rows = toy_phrases(300, 4, seed=5)
    trie = Trie.of(rows)
    leaves = np.arange(len(trie.copies))
    assert np.array_equal(np.repeat(trie.sequences(leaves), trie.copies, axis=0), rows[np.lexsort(rows.T[::-1])])


@given(rows=st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=60))
def test_a_trie_holds_every_sequence_as_often_as_it_occurs(rows):
    trie = Trie.of(np.array(rows))
    counts = {}
    for first in range(len(trie.words[0])):
        for second in trie.children(0, np.array([first]))[0]:
            for third in trie.children(1, np.array([second]))[0]:
                key = tuple(int(trie.words[k][n]) for k, n in enumerate((first, second, third)))
                counts[key] = int(trie.copies[third])
                assert trie.find(np.array(key)) == third
    assert counts == {row: rows.count(row) for row in rows}
    assert trie.find(np.array([6, 6, 6])) is None
