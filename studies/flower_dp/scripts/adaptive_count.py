"""Adaptive clipping: the count of clipped updates has noise for a sensitivity of ½, and a sensitivity of 1.

Andrew et al. (2021) count bᵢ − ½, so that adding a client moves the sum by ½ and z = (z_Δ⁻² + (2σ_b)⁻²)^-½. Flower
counts bᵢ and keeps the formula. Clients are sent the clip norm, from which the noisy count can be read.
"""

from flwr.supercore.differential_privacy import compute_adaptive_noise_params

for clients, noise in ((20, 1.5), (100, 1.5), (1000, 1.5)):
    count_noise, update_noise = compute_adaptive_noise_params(noise, clients, None)
    both = (update_noise**-2 + count_noise**-2) ** -0.5
    print(f"{clients} clients: noise multiplier promised {noise}, kept {both:.3f}")
