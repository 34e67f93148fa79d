"""Examples of the data as canaries."""

import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

pytest.importorskip("opacus", reason="Opacus is not installed: pip install 'coalmine[opacus]'")

from coalmine import OneShot, Samples
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.methods.samples.audit import SampleCanaries
from coalmine.results.verdict import EXAMPLE
from opacus_trainings import CLIP, DIM, NoNoise, Private, data, network, unusual_samples


@pytest.fixture(autouse=True)
def quiet_and_seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_inserted_samples_have_the_types_of_the_data():
    canaries = unusual_samples(20)
    dataset = canaries.insert_into(data(30))
    assert len(dataset) == 30 + canaries.members.sum()
    inputs, targets = next(iter(DataLoader(dataset, batch_size=len(dataset))))
    assert torch.equal(inputs[30:], canaries.inputs[canaries.members])
    assert torch.equal(targets[30:], canaries.targets[canaries.members])

    class PlainTargets(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return torch.zeros(64, dtype=torch.float64), 7

    inputs, targets = next(iter(DataLoader(canaries.insert_into(PlainTargets()), batch_size=100)))
    assert inputs.dtype == torch.float64
    assert targets[3:].tolist() == canaries.targets[canaries.members].tolist()
    with pytest.raises(InputError, match=r"\(8, 8\).*\(64,\)"):
        canaries.insert_into(data(shape=(8, 8)))


def test_samples_and_gradients_have_independent_coins():
    samples, gradients = unusual_samples(200), OneShot(DIM, rounds=1, canaries=100)
    agree = int((samples.members == gradients.members).sum())
    assert 60 < agree < 140  # fair and independent: outside with probability 1e-8


def test_mislabeled_samples_have_every_wrong_class_and_never_their_own():
    inputs, targets = data(500)[:]
    wrong = SampleCanaries.mislabeled(inputs, targets, classes=10).targets
    assert not (wrong == targets).any()
    assert sorted(set(((wrong - targets) % 10).tolist())) == list(range(1, 10))


def test_memorized_samples_refute_the_claim_of_a_training_without_noise():
    for kind, refuted in ((NoNoise, True), (None, False)):
        canaries = unusual_samples()
        private = Private(noise=5.0, dataset=canaries.insert_into(data(40)), kind=kind, batch=25, clip=2.0)
        audit = private.audit(20 * len(private.loader), canaries=None, samples=canaries, model=private.model)
        private.train(20)
        final, updates = audit.results(delta=1e-5)
        assert (final.method, final.view, final.unit) == ("samples", "final-change", EXAMPLE)
        assert final.bound.method == "one-run"
        assert (final.refuted, updates.refuted) == (refuted, refuted), (final.summary, updates.summary)


def test_a_gradient_in_one_batch_shows_in_the_likelihood_ratio_of_that_canary():
    torch.manual_seed(0)
    module, canaries = network(), unusual_samples(40)
    audit = Samples(canaries=canaries, model=module, rounds=1, view="updates")
    audit.plant(0, clip_norm=CLIP)
    loss = F.cross_entropy(module(canaries.inputs[3:4]), canaries.targets[3:4])
    row = torch.cat([g.ravel() for g in torch.autograd.grad(loss, list(module.parameters()))])
    update = -row * min(1.0, CLIP / float(row.norm()))
    audit.observe(0, update=(update / 8).numpy(), divisor=8.0)
    # Nothing else moves: ⟨c, S⟩ = −|c|² and v = |c|²/d, so the log-ratio is (|c|² − |c|²/2)/v = d/2, and the largest.
    assert audit.state()["scores"][3] == pytest.approx(DIM / 2, rel=1e-4)
    assert audit.state()["scores"].argmax() == 3


def test_samples_refuse_what_does_not_fit():
    private, canaries = Private(), unusual_samples(20)
    with pytest.raises(InputError, match="model must be the module"):
        private.audit(3, samples=canaries)
    with pytest.raises(InputError, match="same order"):
        private.audit(3, samples=canaries, model=network())
    with pytest.raises(InputError, match="'every:2'"):
        private.audit(3, samples=canaries, model=private.model, sample_views=["every:2"])
    with pytest.raises(InputError, match="of 1 canaries"):
        SampleCanaries(inputs=torch.rand(1, 64), targets=torch.zeros(1, dtype=torch.int64))
    with pytest.raises(InputError, match="20 inputs and 19 targets"):
        SampleCanaries(inputs=canaries.inputs, targets=canaries.targets[1:])


def test_the_registry_knows_it_as_a_method_for_integrations():
    method = registry.get("samples")
    assert (method.name, method.settings_type) == ("samples", None)
