"""Mock clients send what clients send, and the pool shares no client under audit."""

import math

import pytest
import torch
from torch import nn

from canary_models import CLIENT, small_resnet
from coalmine.errors import InputError
from coalmine.methods.canife.pool import MockClients, check_disjoint, updates
from coalmine.simulation import SGD, LocalTraining
from coalmine.simulation.flat import parameter_vector
from federations import cnn, federation, mlp, naive_sum


def test_pool_updates_are_what_clients_send():
    data = federation([3, 5, 1, 4])
    training = LocalTraining(optimizer=SGD(learning_rate=0.5), epochs=2, batch_size=2)
    pool = MockClients(cnn(), data, training).pool(0.05)
    combined = pool.combined(torch.ones(1, 4))[0]
    expected = updates(cnn(), data, training, 0.05).double().sum(0)
    torch.testing.assert_close(combined, expected, atol=1e-7, rtol=1e-4)
    assert torch.linalg.vector_norm(pool.gram.diagonal().sqrt(), math.inf) <= 0.05
    single = data.subset([1])
    exact, _ = naive_sum(cnn(), single, CLIENT, lambda p: torch.optim.SGD(p, lr=0.5), 0.05)
    sent = updates(cnn(), single, CLIENT, 0.05)[0]
    torch.testing.assert_close(sent.double(), exact, atol=2e-6, rtol=1e-3)


class UsesItsKernelElsewhere(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel = nn.Conv2d(1, 1, 3, padding=1, bias=False)

    def forward(self, images):
        return self.kernel(images).flatten(1) * self.kernel.weight.flatten()[None, :4]


def test_weights_that_only_meet_padding_take_no_memory_unless_they_move():
    data = federation([2] * 3, shape=(1, 1, 1), classes=4)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(2, 4))
    for module, used in ((plain, 2 + 2 + 12), (UsesItsKernelElsewhere(), 9)):
        pool = MockClients(module, data, CLIENT).pool(0.3)
        assert pool.rows.shape == (3, used)
        torch.testing.assert_close(pool.at(torch.ones_like(pool.used)), updates(module, data, CLIENT, 0.3))


def test_products_with_a_pool_are_those_of_its_rows():
    data = federation([2] * 5, shape=(3, 16, 16), classes=4)
    pool = MockClients(small_resnet(), data, CLIENT).pool(1.0)
    whole = pool.at(torch.ones_like(pool.used))
    torch.testing.assert_close(whole, updates(small_resnet(), data, CLIENT, 1.0), atol=1e-6, rtol=1e-3)
    exact = whole.double()
    vectors, weights = torch.randn(3, exact.shape[1]), torch.randn(2, len(pool))
    torch.testing.assert_close(pool.dots(vectors), vectors.double() @ exact.T)
    torch.testing.assert_close(pool.gram, exact @ exact.T)
    torch.testing.assert_close(pool.combined(weights), weights.double() @ exact)


def test_a_pool_that_shares_clients_is_refused():
    data = federation([4] * 6)
    with pytest.raises(InputError, match=r"4 of 12 examples of the design pool"):
        check_disjoint(data.subset([0, 1, 2]), data.subset([2, 3, 4]))
    with pytest.raises(InputError, match="set users aside"):
        MockClients(mlp(), data, CLIENT, clients=data).pool(1.0)
    check_disjoint(data.subset([0, 1, 2]), data.subset([3, 4, 5]))
    check_disjoint(data, federation([4] * 6, seed=1))


def test_a_model_without_trainable_parameters_is_refused():
    module = mlp().requires_grad_(False)
    with pytest.raises(InputError, match="no trainable parameters"):
        MockClients(module, federation([2]), CLIENT).pool(1.0)


def test_mock_clients_who_train_together_send_what_each_sends_alone():
    data = federation([7, 1, 5, 12])
    training = LocalTraining(optimizer=SGD(learning_rate=0.5), epochs=2, batch_size=3)
    clients = MockClients(mlp(), data, training, seed=4)
    alone = updates(mlp(), data, training, 0.3, seed=4)
    for _ in range(2):
        combined = clients.pool(0.3, parameter_vector(mlp())).combined(torch.eye(4))
        torch.testing.assert_close(combined, alone.double(), atol=1e-6, rtol=1e-4)


def test_mock_clients_of_a_module_that_draws_random_numbers_train_alone():
    data, module = federation([7, 5]), nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Dropout(0.5))
    training = LocalTraining(optimizer=SGD(learning_rate=0.5), epochs=2)
    pool = MockClients(module, data, training).pool(0.3)
    alone = updates(module, data, training, 0.3)
    assert torch.equal(pool.rows, alone)
