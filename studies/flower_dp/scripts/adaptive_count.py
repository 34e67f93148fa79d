"""Adaptive clipping: the count of clipped updates has sensitivity 1, but its noise is for a sensitivity of ½.

Andrew et al. (2021) sum bᵢ − ½, so that adding a client changes the sum by ½, and z = (z_Δ⁻² + (2σ_b)⁻²)^-½. Flower
sums bᵢ and keeps the formula. Clients receive the clip norm, which reveals the noisy count.
"""

from flwr.supercore.differential_privacy import compute_adaptive_noise_params

for clients, noise in ((20, 1.5), (100, 1.5), (1000, 1.5)):
    count_noise, update_noise = compute_adaptive_noise_params(noise, clients, None)
    both = (update_noise**-2 + count_noise**-2) ** -0.5
    print(f"{clients} clients: noise multiplier {noise} claimed, {both:.3f} in effect")
