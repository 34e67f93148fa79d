"""Trainings with Opacus under audit."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler

opacus = pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'coalmine[opacus]'")

from opacus.optimizers import AdaClipDPOptimizer, DistributedDPOptimizer, DPOptimizer

from coalmine import Canife, OneShot
from coalmine.claims import Claim, EveryRound, Poisson
from coalmine.errors import CanaryWarning, InputError
from coalmine.integrations.opacus import SampleCanaries, audit_opacus
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.one_shot.canaries import update_canaries
from coalmine.report.page import model_card, report
from coalmine.results.io import read_run_directory
from coalmine.results.verdict import EXAMPLE, ROUND
from opacus_trainings import (
    BATCHES,
    CLIP,
    DIM,
    NOISE,
    HalfNoise,
    NoClipping,
    NoNoise,
    Private,
    data,
    unusual_samples,
)

ADAPTIVE = {
    "clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0, "min_clipbound": 0.1, "unclipped_num_std": 10.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet_and_seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def gradient(private):
    return np.concatenate([p.grad.detach().numpy().ravel() for p in private.optimizer.params])


@pytest.mark.parametrize(
    ("options", "divisor"),
    [
        ({}, 25),
        ({"loss_reduction": "sum"}, 1),
        ({"grad_sample_mode": "ghost"}, 25),
        ({"grad_sample_mode": "functorch"}, 25),
        (ADAPTIVE, 25),
        ({"poisson_sampling": False}, 25),
    ],
    ids=["flat", "sum", "ghost", "functorch", "adaptive", "shuffled"],
)
def test_without_noise_a_step_differs_by_exactly_the_canaries(options, divisor):
    plain, audited = (Private(noise=0.0, **options) for _ in range(2))
    audit = audited.audit(1, canaries=30, views=["updates"])
    batch = data(40)[:]
    plain.step(*batch)
    audited.step(*batch)
    same = OneShot(DIM, rounds=1, canaries=30, view="updates")
    expected = same.plant(0, clip_norm=CLIP).total / divisor
    assert np.abs(expected).max() > 0
    assert gradient(plain) - gradient(audited) == pytest.approx(expected, abs=2e-6 * CLIP / divisor * 30)
    assert audit.taken == 1


def test_virtual_steps_insert_once_and_split_batches_give_the_same_scores():
    scores = []
    for physical in (None, 7):
        private = Private(noise=0.0)
        audit = private.audit(BATCHES, canaries=30, views=["updates"])
        torch.manual_seed(5)
        private.train(physical=physical)
        assert audit.taken == BATCHES
        scores.append(np.concatenate(audit.audits[0].scores()))
    assert scores[1] == pytest.approx(scores[0], abs=1e-4)


def test_without_noise_and_data_scores_are_exact():
    private = Private(noise=0.0)
    audit = private.audit(3, canaries=30, views=["updates", "final-change"])
    first = torch.cat([p.detach().ravel() for p in private.optimizer.params]).numpy()
    for _ in range(3):
        private.step_without_gradients()
    members = audit.audits[0].members
    shifts = update_canaries("hadamard", dim=DIM, count=60, seed=0).dots(-gradient(private) * 25 / CLIP)
    assert shifts == pytest.approx(members.astype(float), abs=1e-5)  # exactly 1 if inserted, 0 if held out
    for view in audit.audits:
        # Cosines with the release after the projections on the other inserted canaries are removed.
        assert view.scores()[0] == pytest.approx(1.0, abs=1e-4)
    moved = torch.cat([p.detach().ravel() for p in private.optimizer.params]).numpy() - first
    assert moved == pytest.approx(-3 * 0.1 * gradient(private), abs=1e-6)


def test_empty_batches_are_ordinary_steps():
    private = Private()
    audit = private.audit(2, canaries=30, views=["updates"])
    private.step(*data(20)[:])
    private.step(torch.empty(0, 64), torch.empty(0, dtype=torch.int64))
    assert audit.taken == 2
    assert audit.audits[0]._checks.cohorts.sizes.tolist() == [20, 0]  # without the empty ones, batches look too large
    assert np.isfinite(np.concatenate(audit.audits[0].scores())).all()
    assert audit.audits[0].notes == ()


# False-alarm rate of a correct training: at most 5%. Its bounds are far below the claim.
@pytest.mark.parametrize(
    ("kind", "refuted"),
    [(None, False), (HalfNoise, True), pytest.param(NoNoise, True, marks=pytest.mark.slow), (NoClipping, True)],
    ids=str,
)
def test_a_correct_training_is_not_refuted_and_one_with_a_bug_is(kind, refuted):
    private = Private(kind=kind)
    views = ["updates", "final-change"] if kind in (None, HalfNoise) else ["updates"]
    audit = private.audit(2 * BATCHES, canaries=100, views=views)
    private.train(2)
    for result in audit.results(delta=1e-5):
        assert result.refuted is refuted
        assert result.bound.method == "exact-null"
        assert (result.tested.sampling, result.tested.rounds) == (EveryRound(), 2 * BATCHES)


class NoNoiseOnOneBias(DPOptimizer):
    def add_noise(self):
        super().add_noise()
        self.params[1].grad = self.params[1].summed_grad.clone()


class SameNoiseInEveryStep(DPOptimizer):
    def add_noise(self):
        with torch.random.fork_rng():
            torch.manual_seed(7)
            super().add_noise()


# False-alarm probability of the correct training: 1e-3.
@pytest.mark.parametrize(
    ("kind", "checks"),
    [(None, []), (NoNoiseOnOneBias, ["noise on every tensor"]), (SameNoiseInEveryStep, ["fresh noise"])],
    ids=str,
)
def test_checks_name_bugs_of_the_noise(kind, checks):
    private = Private(kind=kind)
    audit = private.audit(BATCHES, canaries=200, views=["updates"])
    private.train(1)
    [result] = audit.results(delta=1e-5)
    assert [finding.check for finding in result.bugs] == checks
    assert all("parameter 1" in finding.sentence for finding in result.bugs if kind is NoNoiseOnOneBias)


# The last bias is too small for a gradient of all coordinates to show that it is left out.
def _clips_all_but_a_bias(norms):
    return [CLIP / max(CLIP, math.hypot(*norms[:3]))] * 3 + [1.0]


# The gradient of step 0 uses all coordinates, those of steps 1 to 4 one tensor each. What is left after clipping is
# exact: clipped tensor by tensor, √(1 + 25 · 60/4510 + 1 + 25 · 10/4510) = 1.545.
@pytest.mark.parametrize(
    ("clips", "seen"),
    [
        (lambda norms: [1.0, 1.0, 1.0, 1.0], "moved by 5 times"),
        (lambda norms: [2 * CLIP / max(1.0, math.hypot(*norms))] * 4, "moved by 2 times"),
        (lambda norms: [min(1.0, CLIP / norm) if norm else 1.0 for norm in norms], "moved by 1.55 times"),
        (_clips_all_but_a_bias, "5 clip norms in parameter 3 was clipped to max_grad_norm = 0.5 in step 4"),
    ],
    ids=["nothing", "twice", "each-tensor", "not-a-bias"],
)
def test_missing_clipping_is_seen_in_the_step_that_tests_it(clips, seen):
    class Unclipped(DPOptimizer):
        def clip_and_accumulate(self):
            samples = [self._get_flat_grad_sample(p) for p in self.params]
            for rows in zip(*samples, strict=True):
                for p, row, factor in zip(self.params, rows, clips([float(r.norm()) for r in rows]), strict=True):
                    p.summed_grad = row * factor if p.summed_grad is None else p.summed_grad + row * factor

    private = Private(kind=Unclipped)
    audit = private.audit(5, canaries=10)
    for _ in range(5):
        private.step_without_gradients()
    for result in audit.results(delta=1e-5):
        [finding] = [finding for finding in result.bugs if finding.check == "clipping"]
        assert seen in finding.sentence
        assert "what the clip norm allows when one example with a gradient of 5 clip norms" in finding.sentence
        assert finding.p_value == 0


def test_batches_of_equal_size_refute_a_claim_for_poisson_sampling_and_warn_about_canaries_in_every_step():
    for participation, refutes in ((None, True), ("every-round", False)):
        private = Private(poisson_sampling=False)
        audit = private.audit(BATCHES, canaries=10, participation=participation, views=["updates"])
        private.train(1)
        [result] = audit.results(delta=1e-5)
        assert [(finding.check, finding.refutes) for finding in result.findings] == [("participation", refutes)]
        assert "clipping" in result.checks


def test_canaries_sampled_like_examples_have_the_claim_of_opacus():
    private = Private(accountant="prv")
    audit = private.audit(BATCHES, canaries=50, participation=None)
    private.train()
    updates, final = audit.results(delta=1e-5)
    expected = Claim(noise_multiplier=NOISE, sampling=Poisson(1 / BATCHES), rounds=BATCHES, delta=1e-5).epsilon
    assert updates.claim == final.claim
    assert updates.claim.epsilon == private.engine.get_epsilon(1e-5)
    assert updates.claim.accountant == "opacus-prv"
    assert updates.claim.sampling == Poisson(1 / BATCHES)
    assert updates.metrics["own_epsilon"] == pytest.approx(expected)
    assert updates.claim.epsilon == pytest.approx(expected, abs=0.03)
    assert not [warning for warning in updates.warnings if "too few to check" not in warning]
    assert updates.unit == EXAMPLE
    assert updates.about_claim


# False-alarm rate of the gate: at most 5%.
@pytest.mark.parametrize("participation", [None, "last:25"])
def test_a_limit_is_compared_with_what_opacus_claims_and_never_with_canaries_in_more_steps(
    participation, tmp_path, run
):
    private = Private(noise=1.5)
    audit = private.audit(4 * BATCHES, canaries=200, participation=participation, views=["updates"])
    private.train(4)
    results = audit.results(delta=1e-5)
    results.save(tmp_path)
    (result,) = results
    assert 2.9 < result.claim.epsilon < 3.1
    assert (result.bound.epsilon > 4) == (participation is not None)
    code, out, _ = run("check", str(tmp_path), "--max-epsilon", "4")
    saved = read_run_directory(tmp_path, scores=True)
    card = model_card(saved)
    if participation is None:
        assert code == 0
        assert "Tested with" not in report(saved) + card + str(results)
    else:
        assert "ABOVE THE LIMIT" not in out
        assert "about canaries in 25 steps" in out
        told = f"Tested with canaries in 25 steps, for which the same noise gives ε = {result.tested.epsilon:.3g}."
        assert all(told in text for text in (report(saved), card, str(results)))
    assert f"| ε | {result.claim.epsilon:.3g} |" in card
    assert f"ε ≤ {result.claim.epsilon:.3g}<" in report(saved)


def test_canaries_in_more_steps_than_examples_do_not_change_what_is_claimed():
    private = Private()
    audit = private.audit(4 * BATCHES, canaries=10, views=["updates"], participation="last:25")
    private.train(4)
    (result,) = audit.results(delta=1e-5)
    expected = Claim(noise_multiplier=NOISE, sampling=EveryRound(), rounds=25, delta=1e-5)
    assert result.claim.epsilon == result.metrics["opacus_epsilon"] < 0.2 * expected.epsilon
    assert result.tested.epsilon == pytest.approx(expected.epsilon)
    assert not result.about_claim
    told = f"Tested with canaries in 25 steps, for which the same noise gives ε = {expected.epsilon:.3g}."
    assert told in str(result)


def test_a_shuffling_loader_gives_a_warning_and_is_accounted_without_amplification():
    private = Private(poisson_sampling=False)
    audit = private.audit(2 * BATCHES, canaries=50, participation=None, views=["updates"])
    private.train(2)
    result = audit.results(delta=1e-5)[0]
    assert any("what is proved is ε" in w and "at-most:2" in w for w in result.warnings)
    assert result.metrics["own_epsilon"] > result.claim.epsilon == private.engine.get_epsilon(1e-5)
    assert result.config["participation"] == "epochs:2"


def test_changing_noise_is_composed():
    private = Private()
    audit = private.audit(BATCHES, canaries=50, views=["updates"])
    for i, batch in enumerate(private.loader):
        private.optimizer.noise_multiplier = 4.0 if i < 4 else 8.0
        private.step(*batch)
    (result,) = audit.results(delta=1e-5)
    accountants = Claim(noise_schedule=[(4.0, 4), (8.0, 4)], delta=1e-5).epsilon
    assert result.tested.epsilon == pytest.approx(accountants, rel=1e-3)  # pld rounds up, the closed form does not
    assert result.tested.noise_multiplier is None


@pytest.mark.slow
def test_per_layer_clipping_rescales_canaries():
    bounds = [0.4, 0.1, 0.3, 0.2]
    private = Private(clip=bounds, clipping="per_layer")
    audit = private.audit(2 * BATCHES, canaries=60, views=["updates"])
    for _ in range(2 * BATCHES):
        private.step_without_gradients()
    # Canaries have the norm of all clip norms together, and releases are projected alike: in pure noise the scores are
    # those of a single clip norm. Four standard errors of the mean of about sixty scores: fails with probability 1e-4.
    members, nonmembers = audit.audits[0].scores()
    std = DIM**-0.5
    assert members.mean() == pytest.approx(std * (2 * BATCHES) ** 0.5 / NOISE, abs=4 * std / len(members) ** 0.5)
    assert nonmembers.mean() == pytest.approx(0.0, abs=4 * std / len(nonmembers) ** 0.5)
    (result,) = audit.results(delta=1e-5)
    assert "noise on every tensor" in result.checks
    assert not result.bugs  # false-alarm probability 1e-3; five examples in every step are only a warning here
    hadamard = OneShot(DIM, rounds=3, canaries=50, view="updates", family="hadamard")
    other = Private(clip=bounds, clipping="per_layer")
    with pytest.raises(InputError, match="hadamard"):
        audit_opacus(other.engine, other.optimizer, other.loader, canaries=None, audits=[hadamard], steps=3)


def test_canaries_follow_an_adaptive_clip_norm():
    private = Private(**ADAPTIVE)
    audit = private.audit(BATCHES, canaries=30, views=["updates"])
    private.train()
    assert isinstance(private.optimizer, AdaClipDPOptimizer)
    norms = audit.audits[0].state()["norms"]
    assert norms[0] == CLIP
    assert len(set(norms.tolist())) > 1
    assert not audit.results(delta=1e-5)[0].refuted


def test_trainings_that_cannot_be_audited_raise():
    private = Private()
    distributed = object.__new__(DistributedDPOptimizer)
    with pytest.raises(InputError, match="DistributedDPOptimizer"):
        audit_opacus(
            private.engine, distributed, private.loader, canaries=None, audits=[OneShot(DIM, rounds=3)], steps=3
        )
    plain = torch.optim.SGD(private.model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"optimizer must be .*, got SGD"):
        audit_opacus(private.engine, plain, private.loader, canaries=None, audits=[OneShot(DIM, rounds=3)], steps=3)
    with pytest.raises(InputError, match=r"4 rounds.* 3 steps"):
        audit_opacus(
            private.engine, private.optimizer, private.loader, canaries=None, audits=[OneShot(DIM, rounds=4)], steps=3
        )
    with pytest.raises(InputError, match="got none"):
        private.audit(3, canaries=None)
    audit = private.audit(3)
    with pytest.raises(InputError, match="already under audit"):
        private.audit(3)
    with pytest.raises(InputError, match="took no step"):
        audit.results(delta=1e-5)


def test_too_few_steps_give_a_warning():
    private = Private()
    audit = private.audit(BATCHES + 4, canaries=30, views=["final-change"])
    private.train()
    (result,) = audit.results(delta=1e-5)
    assert "8 of the 12 announced" in str(result)
    assert result.config["steps"] == BATCHES


def test_steps_that_nobody_looked_at_leave_no_result():
    """The noise may end with the announced steps, and the claim is about all of them."""
    private = Private()
    audit = private.audit(BATCHES - 3, canaries=30, views=["final-change"])
    with pytest.warns(CanaryWarning, match="6 steps, of which the audit saw 5"):
        private.train()
    with pytest.raises(InputError, match="8 steps, of which the audit saw 5: the noise of the others is not tested"):
        audit.results(delta=1e-5)
    late = Private().train()
    audit = late.audit(BATCHES, canaries=30, views=["final-change"])
    late.train()
    with pytest.raises(InputError, match="16 steps, of which the audit saw 8"):
        audit.results(delta=1e-5)


def test_the_promised_epsilon_is_what_is_claimed():
    private = Private()
    audit = private.audit(BATCHES, canaries=30, views=["updates"])
    private.train()
    (reported,) = audit.results(delta=1e-5)
    (larger,) = audit.results(delta=1e-5, epsilon=8.0)
    assert (larger.claim.epsilon, larger.metrics["opacus_epsilon"]) == (8.0, reported.claim.epsilon)
    assert not larger.refuted
    (smaller,) = audit.results(delta=1e-5, epsilon=reported.claim.epsilon / 3)
    assert "below what this mechanism gives" in smaller.bugs[0].sentence


def test_a_diverging_model_does_not_end_the_training():
    private = Private()
    canaries = unusual_samples(20)
    audit = private.audit(2, canaries=30, samples=canaries, model=private.model)
    private.step(*data(20)[:])
    private.optimizer.param_groups[0]["lr"] = float("inf")
    private.step(*data(20)[:])
    for view in audit.audits:
        assert np.isfinite(np.concatenate(view.scores())).all()
        assert any("not finite" in note for note in view.notes)


def test_an_audit_continues_from_a_checkpoint():
    whole, first, second = (Private() for _ in range(3))
    audits = [private.audit(4, canaries=30) for private in (whole, first, second)]
    batches = [data(30 + i)[:] for i in range(4)]
    for i, batch in enumerate(batches):
        torch.manual_seed(i)
        whole.step(*batch)
        torch.manual_seed(i)
        (first if i < 2 else second).step(*batch)
        if i == 1:
            second.model.load_state_dict(first.model.state_dict())
            second.engine.accountant.load_state_dict(first.engine.accountant.state_dict())
            audits[2].restore(audits[1].state())
    for whole_run, resumed in zip(audits[0].audits, audits[2].audits, strict=True):
        for expected, scores in zip(whole_run.scores(), resumed.scores(), strict=True):
            assert np.array_equal(scores, expected)


def test_learning_rate_schedulers_work_with_a_wrapped_optimizer():
    private = Private()
    audit = private.audit(BATCHES, canaries=30)
    schedule = torch.optim.lr_scheduler.StepLR(private.optimizer, step_size=1, gamma=0.5)
    for batch in private.loader:
        private.step(*batch)
        schedule.step()
    assert audit.taken == BATCHES
    assert private.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**BATCHES)


def test_the_training_itself_draws_the_same_noise_under_audit():
    weights = []
    for audited in (False, True):
        private = Private()
        canaries = SampleCanaries.mislabeled(*data(20)[:], classes=10)
        if audited:
            private.audit(BATCHES, canaries=None, samples=canaries, model=private.model)
        weights.append(torch.cat([p.detach().ravel() for p in private.train().model.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.slow
def test_canife_scores_the_steps_of_a_training():
    private = Private(noise=0.3)
    audit = Canife(canaries=GivenUpdates(np.eye(1, DIM)), rounds=24, every=24, trials=24, mode="running")
    opacus_audit = audit_opacus(
        private.engine, private.optimizer, private.loader, canaries=None, audits=[audit], steps=24
    )
    private.train(3)
    (result,) = opacus_audit.results(delta=1e-5)
    assert result.unit == ROUND
    assert result.claim.rounds == 1
    (period,) = audit.periods
    assert period.scores[period.present].mean() == pytest.approx(1.0, abs=0.25)  # noise 0.3, twelve of each
    assert period.scores[~period.present].mean() == pytest.approx(0.0, abs=0.25)


@pytest.mark.slow
def test_results_are_saved_under_the_names_of_method_and_view(tmp_path):
    canaries = unusual_samples(60)
    private = Private(dataset=canaries.insert_into(data()))
    steps = len(private.loader)
    audit = private.audit(
        steps, canaries=50, views=["updates"], samples=canaries, sample_views=["updates"], model=private.model
    )
    private.train()
    results = audit.results(delta=1e-5, metrics={"accuracy": 0.5})
    results.save(tmp_path / "run")
    assert [result.unit for result in results] == [EXAMPLE, EXAMPLE]
    assert [result.metrics["accuracy"] for result in results] == [0.5, 0.5]
    assert sorted(path.name for path in (tmp_path / "run").glob("scores-*.npz")) == [
        "scores-one-shot-updates.npz",
        "scores-samples-updates.npz",
    ]


@pytest.mark.parametrize("way", ["accumulated", "with replacement"])
def test_nothing_is_proved_if_an_example_may_occur_several_times_in_a_step(way):
    private = Private(poisson_sampling=False)
    if way == "with replacement":
        private.loader.batch_sampler.sampler = RandomSampler(private.loader.dataset, replacement=True)
    steps = BATCHES // 2 if way == "accumulated" else BATCHES
    audit = private.audit(steps, canaries=50, views=["updates"])
    if way == "accumulated":
        private.train_accumulating(every=2)
    else:
        private.train()
    (result,) = audit.results(delta=1e-5)
    assert result.metrics["own_epsilon"] == np.inf
    assert any("nothing is proved" in w for w in result.warnings)


def test_canaries_do_not_influence_adaptive_clipping():
    norms = []
    for canaries in (None, 300):
        private = Private(poisson_sampling=False, **ADAPTIVE)
        if canaries:
            private.audit(1, canaries=canaries, views=["updates"])
        torch.manual_seed(5)
        private.step(*next(iter(private.loader)))
        norms.append(float(private.optimizer.max_grad_norm))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_passes_before_a_checkpoint_count():
    first, then = Private(poisson_sampling=False), Private(poisson_sampling=False)
    before = first.audit(3 * BATCHES, canaries=50, views=["updates"])
    first.train(2)
    after = then.audit(3 * BATCHES, canaries=50, views=["updates"])
    after.restore(before.state())
    after.restore(after.state())  # interrupted again before any step
    then.train()
    then.engine.accountant.load_state_dict(first.engine.accountant.state_dict())
    assert any("at-most:3" in w for w in after.results(delta=1e-5)[0].warnings)


def test_canaries_louder_than_the_noise_cause_a_warning_before_the_training():
    quiet = Private(noise=0.2)  # in DIM dimensions as loud as 0.04 · DIM canaries
    canaries = int(0.04 * DIM) + 1
    with pytest.warns(CanaryWarning, match=f"{canaries} canaries in .* dimensions"):
        quiet.audit(BATCHES, canaries=canaries)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CanaryWarning)
        Private(noise=0.2).audit(BATCHES, canaries=canaries - 1)
