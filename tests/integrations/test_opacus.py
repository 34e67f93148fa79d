"""Trainings with Opacus under audit."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

opacus = pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'coalmine[opacus]'")

from opacus import PrivacyEngine
from opacus.optimizers import AdaClipDPOptimizer, DistributedDPOptimizer, DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager

from coalmine import Canife, OneShot, Samples
from coalmine.accounting import scheduled_epsilon, theory
from coalmine.accounting.sampling import EveryRound, Poisson
from coalmine.errors import InputError
from coalmine.integrations.opacus import OpacusAudit, SampleCanaries, audit_opacus
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design.loop import DesignSettings
from coalmine.methods.one_shot.updates import update_canaries
from coalmine.results.files import save
from coalmine.results.groups import groups
from coalmine.results.saved import read_run_directory

CLIP, NOISE, DIM, BATCHES = 0.5, 2.0, 4510, 8
ADAPTIVE = {
    "clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0, "min_clipbound": 0.1, "unclipped_num_std": 10.0,
}  # fmt: skip


class HalfNoise(DPOptimizer):
    def add_noise(self):
        self.noise_multiplier /= 2
        super().add_noise()
        self.noise_multiplier *= 2  # what the accountant is told


class NoNoise(DPOptimizer):
    def add_noise(self):
        for p in self.params:
            p.grad = p.summed_grad.clone()


class NoClipping(DPOptimizer):
    def clip_and_accumulate(self):
        for p in self.params:
            total = self._get_flat_grad_sample(p).sum(0)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total


@pytest.fixture(autouse=True)
def quiet_and_seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def data(count=200, shape=(64,)):
    draw = torch.Generator().manual_seed(1)
    return TensorDataset(torch.rand(count, *shape, generator=draw), torch.randint(10, (count,), generator=draw))


def network():
    return nn.Sequential(nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 10))


class Private:
    """A training as anybody has it, with what make_private gives."""

    def __init__(self, *, noise=NOISE, batch=25, dataset=None, kind=None, accountant="rdp", clip=CLIP, **options):
        torch.manual_seed(3)
        self.engine = PrivacyEngine(accountant=accountant)
        module = network()
        made = self.engine.make_private(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(data() if dataset is None else dataset, batch_size=batch, shuffle=True),
            noise_multiplier=noise,
            max_grad_norm=clip,
            criterion=nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean")),
            **options,
        )
        self.model, self.optimizer, *criterion, self.loader = made
        self.criterion = (
            criterion[0] if criterion else nn.CrossEntropyLoss(reduction=options.get("loss_reduction", "mean"))
        )
        if kind is not None:
            self.optimizer.__class__ = kind

    def step(self, inputs, targets):
        self.optimizer.zero_grad()
        self.criterion(self.model(inputs), targets).backward()
        self.optimizer.step()

    def train(self, epochs=1, physical=None):
        for _ in range(epochs):
            if physical is None:
                for batch in self.loader:
                    self.step(*batch)
            else:
                with BatchMemoryManager(
                    data_loader=self.loader, max_physical_batch_size=physical, optimizer=self.optimizer
                ) as loader:
                    for batch in loader:
                        self.step(*batch)
        return self

    def audit(self, steps, **settings):
        return audit_opacus(self.engine, self.optimizer, self.loader, steps=steps, **settings)


def gradient(private):
    return np.concatenate([p.grad.detach().numpy().ravel() for p in private.optimizer.params])


@pytest.mark.parametrize(
    ("options", "length", "divisor"),
    [
        ({}, None, 25),
        ({}, 1.0, 25),
        ({"loss_reduction": "sum"}, None, 1),
        ({"grad_sample_mode": "ghost"}, None, 25),
        ({"grad_sample_mode": "functorch"}, None, 25),
        (ADAPTIVE, None, 25),
        ({"poisson_sampling": False}, None, 25),
    ],
    ids=["flat", "at-once", "sum", "ghost", "functorch", "adaptive", "shuffled"],
)
def test_without_noise_a_step_differs_by_exactly_the_canaries(options, length, divisor):
    plain, audited = (Private(noise=0.0, **options) for _ in range(2))
    audit = audited.audit(1, canaries=30, participation="every-round", length=length, views=["updates"])
    batch = data(40)[:]
    plain.step(*batch)
    audited.step(*batch)
    twin = OneShot(dim=DIM, rounds=1, canaries=30, view="updates", participation="every-round")
    expected = twin.plant(0, clip_norm=CLIP).total / divisor
    assert np.abs(expected).max() > 0
    assert gradient(plain) - gradient(audited) == pytest.approx(expected, abs=2e-6 * CLIP / divisor * 30)
    assert audit.steps.taken == 1


def test_virtual_steps_plant_once_and_split_batches_give_the_same_gradients():
    found = []
    for physical in (None, 7):
        private = Private(noise=0.0)
        audit = private.audit(BATCHES, canaries=30, participation="every-round", views=["updates"])
        torch.manual_seed(5)
        private.train(physical=physical)
        assert audit.steps.taken == BATCHES
        found.append(np.concatenate(audit.audits[0].scores()))
    assert found[1] == pytest.approx(found[0], abs=1e-4)


def test_without_noise_and_data_a_canary_is_found_exactly_where_it_was_planted():
    private = Private(noise=0.0)
    audit = private.audit(3, canaries=30, participation="every-round", views=["updates", "final-change"])
    first = torch.cat([p.detach().ravel() for p in private.optimizer.params]).numpy()
    for _ in range(3):
        private.optimizer.zero_grad()
        (0.0 * private.model(torch.rand(5, 64)).sum()).backward()
        private.optimizer.step()
    members = audit.audits[0].members
    found = update_canaries("hadamard", dim=DIM, count=60, seed=0).dots(-gradient(private) * 25 / CLIP)
    assert found == pytest.approx(members.astype(float), abs=1e-5)  # a shift of exactly 1, or of 0
    for one in audit.audits:
        assert one.scores()[0] == pytest.approx(1.0, abs=1e-4)  # cosines with what is left without the others
    moved = torch.cat([p.detach().ravel() for p in private.optimizer.params]).numpy() - first
    assert moved == pytest.approx(-3 * 0.1 * gradient(private), abs=1e-6)


def test_an_empty_batch_is_a_step_like_any_other():
    private = Private()
    audit = private.audit(2, canaries=30, participation="every-round", views=["updates"])
    private.step(*data(20)[:])
    private.step(torch.empty(0, 64), torch.empty(0, dtype=torch.int64))
    assert audit.steps.taken == 2
    assert np.isfinite(np.concatenate(audit.audits[0].scores())).all()
    assert audit.audits[0].notes == ()


# 1 − 0.95 is how often a correct trainer may be refuted at most; its bounds are far below (benchmarks/opacus_audit.py).
@pytest.mark.parametrize(
    ("kind", "refuted"), [(None, False), (HalfNoise, True), (NoNoise, True), (NoClipping, True)], ids=str
)
def test_a_correct_training_is_not_refuted_and_one_with_a_bug_is(kind, refuted):
    private = Private(kind=kind)
    views = ["updates", "final-change"] if kind in (None, HalfNoise) else ["updates"]
    audit = private.audit(2 * BATCHES, canaries=100, participation="every-round", views=views)
    private.train(2)
    for result in audit.results(delta=1e-5):
        assert result.refuted is refuted
        assert result.bound.method == "exact-null"
        assert (result.theory.sampling, result.theory.rounds) == ("every-round", 2 * BATCHES)


def test_canaries_drawn_like_examples_are_promised_what_opacus_says():
    private = Private(accountant="prv")
    audit = private.audit(BATCHES, canaries=50)
    private.train()
    updates, final = audit.results(delta=1e-5)
    own = theory(noise_multiplier=NOISE, sampling=Poisson(1 / BATCHES), rounds=BATCHES, delta=1e-5).epsilon
    assert updates.theory == final.theory
    assert updates.theory.epsilon == private.engine.get_epsilon(1e-5)
    assert updates.theory.accountant == "opacus-prv"
    assert updates.theory.sampling == f"poisson:{1 / BATCHES}"
    assert updates.metrics["own_epsilon"] == pytest.approx(own)
    assert updates.theory.epsilon == pytest.approx(own, abs=0.03)
    assert updates.warnings == []


def test_accountants_that_differ_are_named():
    private = Private()
    audit = private.audit(BATCHES, canaries=50, views=["updates"])
    private.train()
    assert any("(rdp)" in w and "the smaller is the tighter" in w for w in audit.results(delta=1e-5)[0].warnings)


def test_a_loader_that_does_not_draw_at_random_is_named_and_accounted_as_it_is():
    private = Private(poisson_sampling=False)
    audit = private.audit(2 * BATCHES, canaries=50, views=["updates"])
    private.train(2)
    result = audit.results(delta=1e-5)[0]
    assert any("what is proved is ε" in w and "at-most:2" in w for w in result.warnings)
    assert result.metrics["own_epsilon"] > result.theory.epsilon == private.engine.get_epsilon(1e-5)
    assert result.config["participation"] == "EpochParticipation(epochs=2)"


def test_noise_that_changes_is_composed():
    private = Private()
    audit = private.audit(BATCHES, canaries=50, participation="every-round", views=["updates"])
    for i, batch in enumerate(private.loader):
        private.optimizer.noise_multiplier = 4.0 if i < 4 else 8.0
        private.step(*batch)
    (result,) = audit.results(delta=1e-5)
    accountants = scheduled_epsilon([(4.0, 4), (8.0, 4)], sampling=EveryRound(), delta=1e-5)
    assert result.theory.epsilon == pytest.approx(accountants, rel=1e-3)  # pld rounds up, the closed form does not
    assert result.theory.noise_multiplier is None


def test_clip_norms_of_their_own_for_each_parameter():
    bounds = [0.4, 0.1, 0.3, 0.2]
    private = Private(clip=bounds, clipping="per_layer")
    audit = private.audit(2 * BATCHES, canaries=60, participation="every-round", views=["updates"])
    for _ in range(2 * BATCHES):
        private.optimizer.zero_grad()
        (0.0 * private.model(torch.rand(5, 64)).sum()).backward()
        private.optimizer.step()
    # The canaries are as long as all clip norms together, and looked at along what was planted: among nothing but
    # noise they are found as if there were one clip norm (to four standard errors of the mean of some sixty).
    members, nonmembers = audit.audits[0].scores()
    one = DIM**-0.5
    assert members.mean() == pytest.approx(one * (2 * BATCHES) ** 0.5 / NOISE, abs=4 * one / len(members) ** 0.5)
    assert nonmembers.mean() == pytest.approx(0.0, abs=4 * one / len(nonmembers) ** 0.5)
    hadamard = OneShot(dim=DIM, rounds=3, canaries=50, view="updates", family="hadamard")
    other = Private(clip=bounds, clipping="per_layer")
    with pytest.raises(InputError, match="family=gaussian"):
        OpacusAudit(other.engine, other.optimizer, other.loader, audits=[hadamard], steps=3)


def test_adaptive_clipping_plants_as_long_as_the_clip_norm_of_the_step():
    private = Private(**ADAPTIVE)
    audit = private.audit(BATCHES, canaries=30, participation="every-round", views=["updates"])
    private.train()
    assert isinstance(private.optimizer, AdaClipDPOptimizer)
    norms = audit.audits[0].state()["norms"]
    assert norms[0] == CLIP
    assert len(set(norms.tolist())) > 1
    assert not audit.results(delta=1e-5)[0].refuted


def test_what_cannot_be_audited_is_refused_with_a_sentence():
    private = Private()
    distributed = object.__new__(DistributedDPOptimizer)
    with pytest.raises(InputError, match="several processes"):
        OpacusAudit(private.engine, distributed, private.loader, audits=[OneShot(dim=DIM, rounds=3)], steps=3)
    plain = torch.optim.SGD(private.model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="optimizer must be the DPOptimizer"):
        OpacusAudit(private.engine, plain, private.loader, audits=[OneShot(dim=DIM, rounds=3)], steps=3)
    with pytest.raises(InputError, match="made for 4 rounds"):
        OpacusAudit(private.engine, private.optimizer, private.loader, audits=[OneShot(dim=DIM, rounds=4)], steps=3)
    with pytest.raises(InputError, match="there is no audit"):
        private.audit(3, canaries=None)
    with pytest.raises(InputError, match="length must be 1"):
        Private(grad_sample_mode="ghost").audit(3, length=5.0)
    audit = private.audit(3)
    with pytest.raises(InputError, match="under audit already"):
        private.audit(3)
    with pytest.raises(InputError, match="no step of the optimizer"):
        audit.results(delta=1e-5)


def test_fewer_steps_and_more_than_announced_are_noted():
    for announced, sentence in ((BATCHES + 4, "8 of the 12 steps"), (BATCHES - 3, "3 steps beyond the 5")):
        private = Private()
        audit = private.audit(announced, canaries=30, views=["final-change"])
        private.train()
        for result in audit.results(delta=1e-5):
            assert any(sentence in w for w in result.warnings)
            counted = f"the accountant has counted {BATCHES} steps, of which {announced} were audited"
            assert (counted in result.warnings) is (announced < BATCHES)
            assert result.config["steps"] == min(announced, BATCHES)


def test_a_model_that_runs_away_does_not_end_the_training():
    private = Private()
    canaries = strange(20)
    audit = private.audit(2, canaries=30, samples=canaries, model=private.model)
    private.step(*data(20)[:])
    private.optimizer.param_groups[0]["lr"] = float("inf")
    private.step(*data(20)[:])
    for one in audit.audits:
        assert np.isfinite(np.concatenate(one.scores())).all()
        assert any("not finite" in note for note in one.notes)


def test_an_audit_goes_on_from_its_state():
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
    for one, other in zip(audits[0].audits, audits[2].audits, strict=True):
        for ours, theirs in zip(one.scores(), other.scores(), strict=True):
            assert np.array_equal(ours, theirs)


def test_a_scheduler_of_the_learning_rate_finds_the_step_it_expects():
    private = Private()
    audit = private.audit(BATCHES, canaries=30)
    schedule = torch.optim.lr_scheduler.StepLR(private.optimizer, step_size=1, gamma=0.5)
    for batch in private.loader:
        private.step(*batch)
        schedule.step()
    assert audit.steps.taken == BATCHES
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


def test_crafted_updates_of_canife_are_found_step_by_step():
    private = Private(noise=0.3)
    audit = Canife(canaries=GivenUpdates(np.eye(1, DIM)), rounds=24, every=24, trials=24, mode="running")
    OpacusAudit(private.engine, private.optimizer, private.loader, audits=[audit], steps=24)
    private.train(3)
    (period,) = audit.periods
    assert period.scores[period.present].mean() == pytest.approx(1.0, abs=0.25)  # noise 0.3, twelve of each
    assert period.scores[~period.present].mean() == pytest.approx(0.0, abs=0.25)


# Examples as canaries


def strange(count=120):
    """Inputs unlike the data's, so that whoever trains on one remembers it."""
    draw = torch.Generator().manual_seed(7)
    return SampleCanaries(
        inputs=5 * torch.randn(count, 64, generator=draw), targets=torch.randint(10, (count,), generator=draw)
    )


def test_planted_samples_are_in_the_data_with_the_data_s_own_types():
    canaries = strange(20)
    dataset = canaries.planted(data(30))
    assert len(dataset) == 30 + canaries.members.sum()
    inputs, targets = next(iter(DataLoader(dataset, batch_size=len(dataset))))
    assert torch.equal(inputs[30:], canaries.inputs[canaries.members])
    assert torch.equal(targets[30:], canaries.targets[canaries.members])

    class WholeNumbers(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return torch.zeros(64, dtype=torch.float64), 7

    inputs, targets = next(iter(DataLoader(canaries.planted(WholeNumbers()), batch_size=100)))
    assert inputs.dtype == torch.float64
    assert targets[3:].tolist() == canaries.targets[canaries.members].tolist()
    with pytest.raises(InputError, match="has the shape"):
        canaries.planted(data(shape=(8, 8)))


def test_the_coins_of_samples_are_not_those_of_gradients():
    samples, gradients = strange(200), OneShot(dim=DIM, rounds=1, canaries=100)
    agree = int((samples.members == gradients.members).sum())
    assert 60 < agree < 140  # fair and independent: outside with probability 1e-8


def test_mislabeled_samples_have_every_wrong_class_and_never_their_own():
    inputs, targets = data(500)[:]
    wrong = SampleCanaries.mislabeled(inputs, targets, classes=10).targets
    assert not (wrong == targets).any()
    assert sorted(set(((wrong - targets) % 10).tolist())) == list(range(1, 10))


def test_samples_that_a_training_without_noise_remembers_refute_its_promise():
    for kind, refuted in ((NoNoise, True), (None, False)):
        canaries = strange()
        private = Private(noise=5.0, dataset=canaries.planted(data(40)), kind=kind, batch=25, clip=2.0)
        audit = private.audit(20 * len(private.loader), canaries=None, samples=canaries, model=private.model)
        private.train(20)
        final, updates = audit.results(delta=1e-5)
        assert final.view == "samples:final-change"
        assert final.bound.method == "one-run"
        assert (final.refuted, updates.refuted) == (refuted, refuted), (final.meaning, updates.meaning)


def test_samples_crafted_like_canife_s_have_gradients_unlike_the_data_s():
    torch.manual_seed(0)
    module, (inputs, targets) = network(), data(40)[:]
    settings = {"classes": 10, "clip_norm": CLIP, "count": 6}
    raw = SampleCanaries.crafted(module, inputs, targets, settings=DesignSettings(iterations=0), **settings)
    made = SampleCanaries.crafted(module, inputs, targets, settings=DesignSettings(iterations=30), **settings)
    assert made.kind == "crafted"
    assert made.inputs.shape == (6, 64)

    def rows(x, y):
        found = []
        for one, label in zip(x, y, strict=True):
            grads = torch.autograd.grad(F.cross_entropy(module(one[None]), label[None]), list(module.parameters()))
            row = torch.cat([g.ravel() for g in grads])
            found.append(row / row.norm())
        return torch.stack(found)

    pool = rows(inputs, targets)
    before, after = ((rows(c.inputs, c.targets) @ pool.T).square().mean() for c in (raw, made))
    assert after < 0.5 * before


def test_a_gradient_in_one_batch_shows_in_the_likelihood_ratio_of_that_canary():
    torch.manual_seed(0)
    module, canaries = network(), strange(40)
    audit = Samples(canaries=canaries, model=module, rounds=1, view="updates")
    audit.plant(0, clip_norm=CLIP)
    loss = F.cross_entropy(module(canaries.inputs[3:4]), canaries.targets[3:4])
    row = torch.cat([g.ravel() for g in torch.autograd.grad(loss, list(module.parameters()))])
    update = -row * min(1.0, CLIP / float(row.norm()))
    from coalmine.protocol import Release

    audit.observe(Release(round=0, kind="update", vector=(update / 8).numpy(), divisor=8.0))
    # Nothing else moves: x = |c|², v = |c|²/d, so the ratio is (|c|² − |c|²/2)/v = d/2, and no other's is as large.
    assert audit.state()["scores"][3] == pytest.approx(DIM / 2, rel=1e-4)
    assert audit.state()["scores"].argmax() == 3


def test_samples_refuse_what_does_not_fit():
    private, canaries = Private(), strange(20)
    with pytest.raises(InputError, match="give model="):
        private.audit(3, samples=canaries)
    with pytest.raises(InputError, match="in their order"):
        private.audit(3, samples=canaries, model=network())
    with pytest.raises(InputError, match="no view 'every:2'"):
        private.audit(3, samples=canaries, model=private.model, sample_views=["every:2"])
    with pytest.raises(InputError, match="leaves nothing to compare"):
        SampleCanaries(inputs=torch.rand(1, 64), targets=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(InputError, match="20 inputs and 19 targets"):
        SampleCanaries(inputs=canaries.inputs, targets=canaries.targets[1:])


# What becomes of the results


def test_results_are_files_like_any_other(tmp_path, run):
    canaries = strange(60)
    private = Private(dataset=canaries.planted(data()))
    steps = len(private.loader)
    audit = private.audit(
        steps, canaries=50, views=["updates"], samples=canaries, sample_views=["updates"], model=private.model
    )
    private.train()
    save(audit.results(delta=1e-5, metrics={"accuracy": 0.5}), tmp_path / "run")
    code, out, _ = run("check", str(tmp_path / "run"), "--max-epsilon", "8", "--json")
    assert code == 0
    assert '"unit": "one example"' in out
    (group,) = groups(read_run_directory(tmp_path / "run").results)
    assert group.title == "The whole training, one example"
    assert [row.adversary for row in group.rows] == [
        "sees every round's noisy average",
        "sees every step's noisy gradient",
    ]
    assert sorted(path.name for path in (tmp_path / "run").glob("scores-*.npz")) == [
        "scores-samples-updates.npz",
        "scores-updates.npz",
    ]


def accumulate(private, every):
    """Train one epoch with a step after so many batches."""
    private.optimizer.zero_grad()
    for i, (inputs, targets) in enumerate(private.loader):
        private.criterion(private.model(inputs), targets).backward()
        if (i + 1) % every == 0:
            private.optimizer.step()
            private.optimizer.zero_grad()


def test_passes_that_are_cut_short_count_as_passes():
    private = Private(poisson_sampling=False)
    audit = private.audit(4, canaries=50, views=["updates"])
    for _ in range(4):
        private.step(*next(iter(private.loader)))
    (result,) = audit.results(delta=1e-5)
    assert any("at-most:4" in w for w in result.warnings)


@pytest.mark.parametrize("way", ["accumulated", "with replacement"])
def test_nothing_is_proved_where_an_example_may_come_several_times_in_a_step(way):
    private = Private(poisson_sampling=False)
    if way == "with replacement":
        private.loader.batch_sampler.sampler = RandomSampler(private.loader.dataset, replacement=True)
    audit = private.audit(BATCHES // 2, canaries=50, views=["updates"])
    if way == "accumulated":
        accumulate(private, every=2)
    else:
        private.train()
    (result,) = audit.results(delta=1e-5)
    assert result.metrics["own_epsilon"] == np.inf
    assert any("nothing is proved" in w for w in result.warnings)


def test_canaries_do_not_steer_adaptive_clipping():
    norms = []
    for canaries in (None, 300):
        private = Private(poisson_sampling=False, **ADAPTIVE)
        if canaries:
            private.audit(1, canaries=canaries, views=["updates"], participation="every-round")
        torch.manual_seed(5)
        private.step(*next(iter(private.loader)))
        norms.append(float(private.optimizer.max_grad_norm))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_passes_before_a_checkpoint_are_not_forgotten():
    first, then = Private(poisson_sampling=False), Private(poisson_sampling=False)
    before = first.audit(3 * BATCHES, canaries=50, views=["updates"])
    first.train(2)
    after = then.audit(3 * BATCHES, canaries=50, views=["updates"])
    after.restore(before.state())
    after.restore(after.state())  # stopped again before any step
    then.train()
    assert str(after.loading.sampling) == "at-most:3"
