"""The gallery of bugs: a correct training loop, and functions that spoil a part of it.

The page shows the source of each function, what coalmine says about the training with it, and a report: all from runs
at the time when the site is built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import coalmine as cm

Vector = np.ndarray[Any, np.dtype[np.float64]]
LAYERS = {"fc1.weight": 2_000, "fc1.bias": 100, "fc2.weight": 890, "fc2.bias": 10}
ROUNDS, CLIENTS, CLIP, NOISE, DIM = 10, 20, 1.0, 2.0, sum(LAYERS.values())
rng = np.random.default_rng(0)


def noise(t: int) -> Vector:
    """Draw the noise of round t."""
    return rng.normal(0, NOISE * CLIP, DIM)


def clip(update: Vector) -> Vector:
    """Scale an update down to the clip norm."""
    return update * min(1.0, CLIP / np.linalg.norm(update))


def cohort(t: int) -> Vector:
    """Choose clients of 80 for round t, each with probability 1/4."""
    return np.flatnonzero(rng.random(80) < 0.25)


def claim(audit: cm.OneShot) -> cm.Claim:
    """Return what the accountant says."""
    return cm.Claim(noise_multiplier=NOISE, sampling=audit.participation, delta=1e-5)


def trained(
    *,
    noise: Callable[[int], Vector] = noise,
    clip: Callable[[Vector], Vector] = clip,
    cohort: Callable[[int], Vector] | None = None,
    claim: Callable[[cm.OneShot], cm.Claim] = claim,
) -> cm.Result:
    """Train with canaries, and return what they and the checks show.

    Args:
        noise: The noise of a round.
        clip: The clipping of an update.
        cohort: The clients of a round; by default always all, and no more is claimed.
        claim: The claim.
    """
    audit = cm.OneShot(
        DIM, rounds=ROUNDS, canaries=100, view="updates", layers=LAYERS,
        participation="every-round" if cohort is None else "poisson:0.25",
    )  # fmt: skip
    for t in range(ROUNDS):
        clients = CLIENTS
        if cohort is not None:
            members = cohort(t)
            audit.cohort(t, members.tolist(), available=80)
            clients = len(members)
        planted = audit.plant(t, clip_norm=CLIP)
        updates = [*rng.normal(0, 0.1, (clients, DIM)), *planted.each(norm=10 * CLIP)]  # canaries are too long, too
        average = (sum(map(clip, updates)) + noise(t)) / len(updates)
        audit.observe(t, update=average.astype(np.float32), divisor=len(updates))
    return audit.result(claim=claim(audit))


def half_the_noise(t: int) -> Vector:
    return rng.normal(0, NOISE * CLIP / 2, DIM)


def no_noise_on_biases(t: int) -> Vector:
    return np.concatenate([rng.normal(0, NOISE * CLIP if "weight" in name else 0, n) for name, n in LAYERS.items()])


def the_same_seed_in_every_round(t: int) -> Vector:
    return np.random.default_rng(42).normal(0, NOISE * CLIP, DIM)


def no_noise_in_the_first_round(t: int) -> Vector:
    return rng.normal(0, NOISE * CLIP, DIM) * (t > 0)


def one_draw_for_each_pair(t: int) -> Vector:
    return np.repeat(rng.normal(0, NOISE * CLIP, DIM // 2), 2)


def clips_each_number(update: Vector) -> Vector:
    return np.clip(update, -CLIP, CLIP)


def always_the_same_clients(t: int) -> Vector:
    return np.arange(20)


def accounts_for_a_quarter_of_the_rounds(audit: cm.OneShot) -> cm.Claim:
    return cm.Claim(noise_multiplier=NOISE, sampling=cm.EveryRound(), rounds=ROUNDS // 4, delta=1e-5)


@dataclass(frozen=True)
class Bug:
    """A bug.

    Args:
        title: What it is called.
        story: How it comes about.
        code: The function with the bug.
        part: The part of `trained` that it takes the place of.
        correct: Other parts of the training that the bug needs.
    """

    title: str
    story: str
    code: Callable[..., Any]
    part: str
    correct: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """A name for files."""
        return self.code.__name__.replace("_", "-")

    def audited(self) -> cm.Result:
        """Train with the bug. All runs start from the same random numbers."""
        rng.bit_generator.state = np.random.default_rng(0).bit_generator.state
        return trained(**{self.part: self.code, **self.correct})


BUGS = [
    Bug(
        "Half the noise",
        "The noise was computed for a clip norm of 0.5, and updates are clipped to 1.",
        half_the_noise,
        "noise",
    ),
    Bug(
        "No noise on biases",
        "Noise is added tensor by tensor, and the loop leaves some out.",
        no_noise_on_biases,
        "noise",
    ),
    Bug(
        "The same seed in every round",
        "Somebody wanted reproducible runs, and put the seed into the loop.",
        the_same_seed_in_every_round,
        "noise",
    ),
    Bug(
        "No noise in the first round",
        "A warm-up that was not meant for production.",
        no_noise_in_the_first_round,
        "noise",
    ),
    Bug(
        "One draw for two numbers",
        "Half as much randomness is half as expensive.",
        one_draw_for_each_pair,
        "noise",
    ),
    Bug(
        "Each number is clipped, not the update",
        "`clip_grad_value_` was called in place of `clip_grad_norm_`.",
        clips_each_number,
        "clip",
    ),
    Bug(
        "Always the same clients",
        "The claim counts on a secret sample of a quarter of the clients in each round.",
        always_the_same_clients,
        "cohort",
    ),
    Bug(
        "The accountant counts too few rounds",
        "It was called once for several rounds.",
        accounts_for_a_quarter_of_the_rounds,
        "claim",
    ),
]

HEAD = """# Bugs, and what coalmine says about them

Each of these functions takes the place of a part of a correct loop ([its source](planted_bugs.py){ download }).
Everything below was printed and drawn when this page was built, and the reports open offline. [Which bugs are
caught](../benchmarks.md#which-bugs-are-caught) counts hundreds of bugs, and false alarms in correct training runs.
"""


def page(directory: Path) -> dict[str, str]:
    """Run all trainings, and return the page with its pictures and reports by file name.

    Args:
        directory: Where reports are written on the way.
    """
    files = {"planted_bugs.py": Path(__file__).read_text(encoding="utf-8")}
    blocks = [HEAD]
    for bug in BUGS:
        result = bug.audited()
        files[f"{bug.name}.svg"] = _svg(result)
        report = result.report(directory / f"{bug.name}.html", title=bug.title)
        files[f"{bug.name}-report.html"] = report.read_text(encoding="utf-8")
        blocks.append(_described(bug, result))
    return {"bugs.md": "\n\n".join(blocks) + "\n", **files}


def _described(bug: Bug, result: cm.Result) -> str:
    """Return the section of a bug: its story and source, what coalmine prints, picture and report."""
    return "\n\n".join(
        [
            f"## {bug.title}",
            bug.story,
            f"```python\n{inspect.getsource(bug.code).rstrip()}\n```",
            f'<div class="output" markdown>\n\n```text\n{result}\n```\n\n</div>',
            f"![Claim, lower bound and best guess: {bug.title.lower()}]({bug.name}.svg){{ .picture }}",
            f"[Open the report]({bug.name}-report.html)",
        ]
    )


def _svg(result: cm.Result) -> str:
    import vl_convert

    svg: str = vl_convert.vegalite_to_svg(result.plot().to_dict())
    return svg
