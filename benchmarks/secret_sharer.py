"""Cost of the secret-sharer searches, on the model of an audit, or on a 10,000-word LSTM trained with 90 canaries.

    python benchmarks/secret_sharer.py audit DIR           # DIR: coalmine audit secret-sharer --out DIR

    python benchmarks/secret_sharer.py train WEIGHTS       # trains it on Stack Exchange (needs COALMINE_DATA)
    python benchmarks/secret_sharer.py ranks WEIGHTS       # random sampling among 2 million references
    python benchmarks/secret_sharer.py agreement WEIGHTS   # branch and bound against scoring every reference
    python benchmarks/secret_sharer.py beam WEIGHTS        # beam search, width 5

Times are CPU seconds of one thread. Scoring every reference is timed on a part of them and scaled linearly.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from coalmine.methods.secret_sharer.evaluation import (
    DEFAULT_LIMIT,
    PhraseScorer,
    beam_search,
    random_suffixes,
    sampled_ranks,
    scored_ranks,
)
from coalmine.methods.secret_sharer.method import TextTrainingSettings
from coalmine.methods.secret_sharer.phrases import Language, PhraseCanaries, draw_phrases, grid, insert
from coalmine.methods.secret_sharer.stored_model import load_model, read_canaries
from coalmine.progress import Advance, listening
from coalmine.simulation import Adam, CentralTraining, models
from coalmine.simulation.data import load
from coalmine.simulation.data.federated import Splits
from coalmine.simulation.models.text import steps_of

REFERENCES = 2_000_000
SUFFIX_LENGTH = 4


def draw_canaries() -> tuple[Splits, PhraseCanaries]:
    """Return Stack Exchange users of 40 sentences each, and 90 canaries for them."""
    splits = load("stackexchange", partition="balanced:40", vocabulary_size=10_000)
    configurations = grid((0.01, 0.003, 0.001), (1.0, 0.1, 0.01))
    return splits, draw_phrases(Language.of(splits.train), configurations=configurations)


def train(weights: Path, steps: int) -> None:
    """Train centrally on shuffled records, the regime that memorizes most."""
    splits, phrases = draw_canaries()
    insertion = insert(splits.train, phrases)
    training = CentralTraining(
        model=models.build("word-lstm", splits.train.task),
        data=insertion.data,
        test=splits.test.subset(range(40)),
        rounds=steps // 100,
        optimizer=Adam(learning_rate=1e-3),
    )
    start = time.process_time()
    training.run(progress=lambda metrics: print(metrics, flush=True))
    print(f"{insertion.data}, {steps} steps in {time.process_time() - start:.0f} s")
    print(f"copies of inserted canaries: {sorted(insertion.copies[phrases.inserted].tolist())}")
    save_file(training.module().state_dict(), weights)


def load_scorer(weights: Path) -> tuple[torch.nn.Module, PhraseScorer, np.ndarray]:
    """Return the trained model, its scorer, and the inserted phrases."""
    splits, phrases = draw_canaries()
    module = models.build("word-lstm", splits.train.task)
    module.load_state_dict(load_file(weights))
    scorer = PhraseScorer(steps_of(module, phrases.language.size), phrases.language)
    return module, scorer, phrases.phrases[phrases.inserted]


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    """Add the CPU seconds of a block to those of a name."""
    start = time.process_time()
    yield
    times[name] = times.get(name, 0.0) + time.process_time() - start


def plain_losses(module: torch.nn.Module, context: np.ndarray, suffixes: np.ndarray, batch: int = 128) -> np.ndarray:
    """Return log-perplexities after one prefix the straightforward way: whole sequences, full logits."""
    losses = np.empty(len(suffixes))
    with torch.no_grad():
        for begin in range(0, len(suffixes), batch):
            words = torch.from_numpy(suffixes[begin : begin + batch].astype(np.int64))
            tokens = torch.cat([torch.from_numpy(context).expand(len(words), -1), words[:, :-1]], dim=1)
            log_probabilities = module(tokens)[:, len(context) - 1 :].log_softmax(2)
            losses[begin : begin + batch] = -log_probabilities.gather(2, words[:, :, None]).sum((1, 2)).numpy()
    return losses


def print_times(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
    """Listen to progress, and print the seconds that each canary takes."""
    last = time.process_time()

    def advance(done: int, _: str) -> None:
        nonlocal last
        now = time.process_time()
        print(f"{what}: {done} of {total} after {now - last:.1f} s", file=sys.stderr, flush=True)
        last = now

    return advance, lambda: None


def ranks(weights: Path, references: int, limit: int | None, scored: int) -> None:
    """Print time and memory of random sampling, beside scoring every reference."""
    module, scorer, phrases = load_scorer(weights)
    suffixes = random_suffixes(scorer.language, count=references, length=SUFFIX_LENGTH)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    with listening(print_times):
        sampled = sampled_ranks(scorer, phrases, suffixes, limit=limit)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    exact = sampled.among == references
    print(f"{len(phrases)} canaries among {references:,} references, limit {limit}: {seconds:.1f} s")
    print(f"memorized {sampled.memorized.sum()}, ranked among all {exact.sum()}; ranks {np.sort(sampled.ranks[exact])}")
    print(f"memory: peak {peak / 2**20:.2f} GiB, {(peak - before) / 2**20:.2f} GiB more than before the search")
    start = time.process_time()
    for phrase in phrases[:5]:
        plain_losses(module, np.array([*scorer.language.context, phrase[0]]), suffixes[:scored])
    per_reference = (time.process_time() - start) / 5 / scored
    plain = per_reference * references * len(phrases)
    print(
        f"scoring every reference: {1e6 * per_reference:.0f} µs per reference (5 canaries, {scored:,} references), "
        f"{plain:,.0f} s in all: {plain / seconds:.0f} times as long"
    )


def audit(directory: Path, references: int) -> None:
    """Print how long ranking takes in a small audit, and how long it would take by scoring references one by one."""
    canaries = read_canaries(directory / "canaries.json")[0]
    module = load_model(TextTrainingSettings(), canaries, directory / "weights.safetensors")
    scorer = PhraseScorer(steps_of(module, canaries.language.size), canaries.language)
    suffixes = random_suffixes(canaries.language, count=references, length=SUFFIX_LENGTH, seed=canaries.seed)
    times: dict[str, float] = {}
    sampled_ranks(scorer, canaries.phrases[:2], suffixes[:5000])
    for _ in range(3):
        with timed(times, "search in growing parts"):
            sampled = sampled_ranks(scorer, canaries.phrases, suffixes)
    with timed(times, "scoring every reference of the same parts"):
        for size in np.unique(sampled.among):
            # Whoever is ranked among this part was scored in all smaller ones too, which are counted within it.
            phrases = canaries.phrases[sampled.among == size]
            assert np.array_equal(scored_ranks(scorer, phrases, suffixes[:size]), sampled.ranks[sampled.among == size])
    with timed(times, "scoring every reference, extrapolated from four phrases"):
        scored_ranks(scorer, canaries.phrases[:4], suffixes)
    times["search in growing parts"] /= 3
    times["scoring every reference, extrapolated from four phrases"] *= len(canaries) / 4
    print(f"{len(canaries)} phrases, {references:,} references, {int(sampled.memorized.sum())} ranked first")
    for name, seconds in times.items():
        print(f"{name:<60}{seconds:>8.2f} s{seconds / times['search in growing parts']:>8.1f} times as long")


def agreement(weights: Path, references: int) -> None:
    """Print how many ranks are the same when every reference is scored."""
    _, scorer, phrases = load_scorer(weights)
    suffixes = random_suffixes(scorer.language, count=references, length=SUFFIX_LENGTH)
    fast = sampled_ranks(scorer, phrases, suffixes, limit=None)
    slow = scored_ranks(scorer, phrases, suffixes)
    print(f"{len(phrases)} canaries among {references:,}: {int((fast.ranks == slow).sum())} ranks are the same")


def plain_beams(module: torch.nn.Module, context: list[int], words: range, length: int, width: int) -> list[int]:
    """Return a beam search after one prefix the straightforward way: whole sequences, ``topk`` of the full softmax."""
    paths, scores = torch.tensor([context]), torch.zeros(1, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(length):
            log_probabilities = module(paths)[:, -1].log_softmax(1)[:, words.start : words.stop].double()
            scores, best = (scores[:, None] + log_probabilities).flatten().topk(width)
            paths = torch.cat([paths[best // len(words)], (best % len(words) + words.start)[:, None]], dim=1)
    continuation: list[int] = paths[0, len(context) :].tolist()
    return continuation


def beam(weights: Path, width: int = 5) -> None:
    """Print the time of one batch of all canaries, beside one canary at a time."""
    times: dict[str, float] = {}
    module, scorer, phrases = load_scorer(weights)
    language = scorer.language
    beam_search(scorer, phrases, width=width)
    for _ in range(5):
        with timed(times, "one batch"):
            batched = beam_search(scorer, phrases, width=width)
        with timed(times, "one at a time, same code"):
            single = np.concatenate([beam_search(scorer, phrases[i : i + 1], width=width) for i in range(len(phrases))])
        with timed(times, "one at a time, straightforward"):
            plain = np.array(
                [plain_beams(module, [*language.context, p[0]], language.words, SUFFIX_LENGTH, width) for p in phrases]
            )
    assert np.array_equal(batched, single)
    assert np.array_equal(batched, plain)
    print(f"{len(phrases)} canaries, width {width}: {int((batched == phrases[:, 1:]).all(axis=1).sum())} extracted")
    for name, seconds in times.items():
        print(f"{name:<52}{seconds / 5:>8.3f} s{seconds / times['one batch']:>8.1f} times as long")


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("audit", "train", "ranks", "agreement", "beam"))
    parser.add_argument("weights", type=Path, help="weights of the LSTM, or the directory of an audit")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--references", type=int, default=REFERENCES)
    parser.add_argument("--scored", type=int, default=2048)
    parser.add_argument("--limit", type=int, default=DEFAULT_LIMIT, help="0 for no limit")
    arguments = parser.parse_args()
    match arguments.what:
        case "audit":
            audit(arguments.weights, min(arguments.references, 100_000))
        case "train":
            train(arguments.weights, arguments.steps)
        case "ranks":
            ranks(arguments.weights, arguments.references, arguments.limit or None, arguments.scored)
        case "agreement":
            agreement(arguments.weights, min(arguments.references, 5000))
        case _:
            beam(arguments.weights)


if __name__ == "__main__":
    main()
