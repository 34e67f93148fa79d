"""What the secret-sharer audit's searches cost on a 10,000-word LSTM that was trained with 90 canaries.

    python benchmarks/secret_sharer.py train WEIGHTS   # trains it on Stack Exchange (needs COALMINE_DATA)
    python benchmarks/secret_sharer.py ranks WEIGHTS   # random sampling among 2 million references
    python benchmarks/secret_sharer.py beam WEIGHTS    # beam search, width 5

Times are CPU seconds of one thread. The long way to the ranks (every reference scored in full batches) is timed on a
part and scaled linearly.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from coalmine.methods.secret_sharer.beam_search import beam_search
from coalmine.methods.secret_sharer.insertion import insert
from coalmine.methods.secret_sharer.phrase_search import Queries, sampled_ranks, scored_ranks
from coalmine.methods.secret_sharer.phrases import Language, PhraseCanaries, draw_phrases, grid, random_suffixes
from coalmine.simulation import Adam, CentralTraining, models
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import Splits
from coalmine.simulation.models.steps import steps_of

REFERENCES = 2_000_000


def canaries() -> tuple[Splits, PhraseCanaries]:
    """90 canaries for Stack Exchange users of 40 sentences each."""
    splits = load("stackexchange", partition="balanced:40", vocabulary_size=10_000)
    configurations = grid((0.01, 0.003, 0.001), (1.0, 0.1, 0.01))
    return splits, draw_phrases(Language.of(splits.train), configurations=configurations)


def train(weights: Path, steps: int) -> None:
    """Central training, shuffled: the regime that memorizes most."""
    splits, phrases = canaries()
    insertion = insert(splits.train, phrases)
    training = CentralTraining(
        model=models.build("word-lstm", splits.train.task),
        data=insertion.data,
        test=splits.test.subset(range(40)),
        rounds=steps // 100,
        optimizer=Adam(learning_rate=1e-3),
    )
    started = time.process_time()
    training.run(progress=lambda metrics: print(metrics, flush=True))
    print(f"{insertion.data}, {steps} steps in {time.process_time() - started:.0f} s")
    print(f"copies of planted canaries: {sorted(insertion.copies[phrases.planted].tolist())}")
    save_file(training.module().state_dict(), weights)


def queries(weights: Path) -> tuple[Queries, np.ndarray, Language]:
    """The trained model, and the phrases of the planted canaries."""
    splits, phrases = canaries()
    module = models.build("word-lstm", splits.train.task)
    module.load_state_dict(load_file(weights))
    steps = steps_of(module, phrases.language.size)
    return Queries(steps, phrases.language), phrases.phrases[phrases.planted], phrases.language


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """CPU seconds of a block, added under a name."""
    start = time.process_time()
    yield
    times[name] = times.get(name, 0.0) + time.process_time() - start


def naive(module: torch.nn.Module, context: np.ndarray, suffixes: np.ndarray, batch: int = 128) -> np.ndarray:
    """Log-perplexities of references after one prefix as one would write it: whole sequences, full logits."""
    found = np.empty(len(suffixes))
    with torch.no_grad():
        for start in range(0, len(suffixes), batch):
            some = torch.from_numpy(suffixes[start : start + batch].astype(np.int64))
            tokens = torch.cat([torch.from_numpy(context).expand(len(some), -1), some[:, :-1]], dim=1)
            chances = module(tokens)[:, len(context) - 1 :].log_softmax(2)
            found[start : start + batch] = -chances.gather(2, some[:, :, None]).sum((1, 2)).numpy()
    return found


def clocked(work: Iterable[int]) -> Iterator[int]:
    """Passes on what it is given, and says where the time goes."""
    for i in work:
        start = time.process_time()
        yield i
        print(f"canary {i}: {time.process_time() - start:.1f} s", file=sys.stderr, flush=True)


def ranks(weights: Path, references: int, limit: int | None, scored: int) -> None:
    """Time, memory and agreement of random sampling."""
    asked, phrases, language = queries(weights)
    suffixes = random_suffixes(language, count=references, length=4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    found = sampled_ranks(asked, phrases, suffixes, limit=limit, track=clocked)
    whole = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    exact = found.among == references
    print(f"{len(phrases)} canaries among {references:,} references, limit {limit}: {whole:.1f} s")
    print(f"memorized {found.memorized.sum()}, ranked among all {exact.sum()}; ranks {np.sort(found.ranks[exact])}")
    print(f"memory: peak {peak / 2**20:.2f} GiB, {(peak - before) / 2**20:.2f} GiB more than before the search")
    module = asked.steps._model  # type: ignore[attr-defined]
    start = time.process_time()
    for phrase in phrases[:5]:
        naive(module, np.array([*language.context, phrase[0]]), suffixes[:scored])
    each = (time.process_time() - start) / 5 / scored
    every = each * references * len(phrases)
    print(
        f"the long way: {1e6 * each:.0f} µs a reference (5 canaries, {scored:,} references), so "
        f"{every:,.0f} s for all: {every / whole:.0f} times as long"
    )


def agreement(weights: Path, references: int) -> None:
    """The same ranks as the long way, on a smaller set."""
    asked, phrases, language = queries(weights)
    suffixes = random_suffixes(language, count=references, length=4)
    fast = sampled_ranks(asked, phrases, suffixes, limit=None)
    slow = scored_ranks(asked, phrases, suffixes)
    print(f"{len(phrases)} canaries among {references:,}: {int((fast.ranks == slow).sum())} ranks are the same")


def plain_beams(module: torch.nn.Module, context: list[int], words: range, length: int, width: int) -> list[int]:
    """Beam search after one prefix as one would write it: whole sequences, all of the softmax, ``topk`` of all."""
    paths, scores = torch.tensor([context]), torch.zeros(1, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(length):
            chances = module(paths)[:, -1].log_softmax(1)[:, words.start : words.stop].double()
            scores, best = (scores[:, None] + chances).flatten().topk(width)
            paths = torch.cat([paths[best // len(words)], (best % len(words) + words.start)[:, None]], dim=1)
    found: list[int] = paths[0, len(context) :].tolist()
    return found


def beam(weights: Path, width: int = 5) -> None:
    """All canaries together, against one at a time."""
    times: dict[str, float] = {}
    asked, phrases, language = queries(weights)
    module = asked.steps._model  # type: ignore[attr-defined]
    beam_search(asked, phrases, width=width)
    for _ in range(5):
        with timed(times, "together"):
            found = beam_search(asked, phrases, width=width)
        with timed(times, "one at a time, by the same code"):
            single = np.concatenate([beam_search(asked, phrases[i : i + 1], width=width) for i in range(len(phrases))])
        with timed(times, "one at a time, as one would write it"):
            plain = np.array(
                [plain_beams(module, [*language.context, p[0]], language.words, 4, width) for p in phrases]
            )
    assert np.array_equal(found, single)
    assert np.array_equal(found, plain)
    print(f"{len(phrases)} canaries, width {width}: {int((found == phrases[:, 1:]).all(axis=1).sum())} extracted")
    for name, seconds in times.items():
        print(f"{name:<52}{seconds / 5:>8.3f} s{seconds / times['together']:>8.1f} times as long")


def main() -> None:
    """Parse, run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "ranks", "agreement", "beam"))
    parser.add_argument("weights", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--references", type=int, default=REFERENCES)
    parser.add_argument("--scored", type=int, default=2048)
    parser.add_argument("--limit", type=int, default=1000, help="0: none")
    given = parser.parse_args()
    match given.what:
        case "train":
            train(given.weights, given.steps)
        case "ranks":
            ranks(given.weights, given.references, given.limit or None, given.scored)
        case "agreement":
            agreement(given.weights, min(given.references, 5000))
        case _:
            beam(given.weights)


if __name__ == "__main__":
    main()
