"""An aggregator with central differential privacy: it clips each update, averages and adds Gaussian noise."""

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator


class NoisyMean(ModelAggregator):
    """Clips updates to ``clip_norm`` and adds noise of ``noise_multiplier`` clip norms to their sum."""

    def __init__(self, clip_norm: float, noise_multiplier: float, seed: int = 0) -> None:
        super().__init__()
        self.clip_norm, self.noise_multiplier, self.seed = clip_norm, noise_multiplier, seed
        self._rng, self._total, self._count = np.random.default_rng(seed), {}, 0

    def reset_stats(self) -> None:
        """Begin a round."""
        self._total, self._count = {}, 0

    def accept_model(self, model: FLModel) -> None:
        """Clip an update, and add it to the sum."""
        norm = np.sqrt(sum(float(np.sum(np.square(value))) for value in model.params.values()))
        factor = min(1.0, self.clip_norm / max(norm, 1e-12))
        for name, value in model.params.items():
            self._total[name] = self._total.get(name, 0.0) + factor * value
        self._count += 1

    def aggregate_model(self) -> FLModel:
        """Return the noisy average."""
        std = self.noise_multiplier * self.clip_norm
        noisy = {name: total + self._rng.normal(0.0, std, total.shape) for name, total in self._total.items()}
        average = {name: (total / self._count).astype(np.float32) for name, total in noisy.items()}
        return FLModel(params=average, params_type=ParamsType.DIFF)
