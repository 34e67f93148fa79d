"""The closed-form derivative of the design loss is the derivative of its definition."""

import numpy as np
import pytest
import torch

from canary_models import random_pool
from coalmine.methods.canife.design import DesignLoss, sample_design_losses
from coalmine.methods.canife.pool import Pool
from federations import mlp


@pytest.mark.parametrize("loss", ["mean", "covariance", "likelihood-ratio"])
def test_the_closed_form_is_the_derivative_of_each_loss(loss):
    rows, pool = random_pool(mlp(), dtype=torch.float64)
    step, constant, count = 0.3, 2.0, len(rows)
    identity = torch.eye(count, dtype=torch.float64)
    metric = {
        "mean": torch.full((count, count), 1 / count**2, dtype=torch.float64),
        "covariance": identity / count,
        "likelihood-ratio": torch.linalg.inv(count * 1e-6 * identity + rows @ rows.T / 0.8**2),
    }[loss]
    gradient = torch.randn(4, rows.shape[1], dtype=torch.float64).mul_(torch.tensor([[0.01], [0.1], [1], [10]]))
    gradient.requires_grad_()
    b = gradient / gradient.norm(dim=1, keepdim=True) @ rows.T / 0.8
    short = (constant - step * gradient.norm(dim=1) / 0.8).clamp(min=0)
    expected = ((b @ metric) * b).sum(1) + short**2
    by_gradient = torch.autograd.grad(expected.sum(), gradient)[0]
    actual = DesignLoss(pool, loss, step=step, norm_constant=constant).derivative(gradient.detach())
    np.testing.assert_allclose(actual[0], expected.detach(), rtol=1e-9)
    torch.testing.assert_close(actual[1], by_gradient, rtol=1e-9, atol=1e-14)


def test_the_likelihood_ratio_loss_is_what_the_noise_and_the_pool_leave_of_the_separation():
    rows, pool = random_pool(mlp(), dtype=torch.float64)
    g = torch.randn(1, rows.shape[1], dtype=torch.float64)
    g /= g.norm()
    (lost,), _ = DesignLoss(pool, "likelihood-ratio", step=1.0, norm_constant=0.0)(g)
    covariance = 100 / len(rows) * rows.T @ rows / 0.8**2 + 0.01**2 * torch.eye(g.shape[1], dtype=torch.float64)
    assert 1 - lost == pytest.approx(float(0.01**2 * g[0] @ torch.linalg.solve(covariance, g[0])), rel=1e-6)


def test_the_derivative_stays_exact_where_all_updates_are_alike():
    draw = torch.Generator().manual_seed(0)
    common, single = torch.randn(1, 300_000, generator=draw), torch.randn(9, 300_000, generator=draw)
    rows = common + 0.03 * single
    rows *= 0.7 / rows.norm(dim=1, keepdim=True)
    gradient = common + 0.03 * torch.randn(1, 300_000, generator=draw)
    derivatives = []
    for dtype in (torch.float32, torch.float64):
        pool = Pool(rows=rows.to(dtype), clip_norm=0.8)
        loss = DesignLoss(pool, step=1.0, norm_constant=1.0)
        derivatives.append(loss.derivative(gradient.to(dtype))[1].double())
    assert (derivatives[0] - derivatives[1]).norm() < 1e-4 * derivatives[1].norm()
    along = gradient.double() / gradient.double().norm()
    assert abs(float((derivatives[0] * along).sum())) < 1e-5 * float(derivatives[0].norm())


def test_a_canary_without_a_gradient_stays_where_it_is():
    _, pool = random_pool(mlp())
    actual = DesignLoss(pool, step=1.0, norm_constant=1.0).derivative(torch.zeros(1, pool.rows.shape[1]))
    assert actual[0].tolist() == [1.0]
    assert not actual[1].any()


def test_columns_that_are_always_zero_may_be_left_out_of_gradients():
    _, pool = random_pool(mlp(), dtype=torch.float64)
    used = torch.arange(pool.rows.shape[1]) % 3 == 0
    gradient = torch.zeros(3, pool.rows.shape[1], dtype=torch.float64)
    gradient[:, used] = torch.randn(3, int(used.sum()), dtype=torch.float64)
    terms = {"step": 1.0, "norm_constant": 9.0}
    expected = DesignLoss(pool, **terms).derivative(gradient)
    actual = DesignLoss(pool, used=used, **terms).derivative(gradient[:, used])
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-9)
    torch.testing.assert_close(actual[1], expected[1][:, used], rtol=1e-9, atol=1e-14)


def test_a_gradient_whose_length_overflows_has_no_loss():
    _, pool = random_pool(mlp())
    loss = DesignLoss(pool, step=1.0, norm_constant=1.0)
    losses, norms = loss(torch.randn(2, pool.rows.shape[1]) * torch.tensor([[1.0], [1e25]]))
    assert np.isfinite(losses).tolist() == [True, False]
    assert np.isinf(norms[1])


def test_a_sample_without_a_loss_is_never_the_best():
    _, pool = random_pool(mlp())
    loss = DesignLoss(pool, step=1.0, norm_constant=1.0)

    class Given:
        used = None

        def of(self, inputs, targets):
            return inputs

    gradients = torch.randn(3, pool.rows.shape[1])
    gradients[1, 0] = torch.nan
    losses, _ = sample_design_losses(Given(), loss, gradients, torch.zeros(3))
    assert losses[1] == np.inf
    assert np.isfinite(losses[[0, 2]]).all()
