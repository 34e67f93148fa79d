"""PRVPrivacyAccountant passes the scale of Laplace noise where prv_accountant expects sensitivity / scale.

Noise of scale b makes a number of sensitivity 1 private with ε = 1 / b. The three accountants of pfl should agree.
"""

from pfl.privacy import PLDPrivacyAccountant, PRVPrivacyAccountant, RDPPrivacyAccountant

settings = {"num_compositions": 1, "sampling_probability": 1.0, "mechanism": "laplace", "delta": 1e-5}
for scale in (0.1, 0.3, 1.0, 10.0):
    accountants = (PLDPrivacyAccountant, RDPPrivacyAccountant, PRVPrivacyAccountant)
    pld, rdp, prv = (float(kind(**settings, noise_parameter=scale).epsilon) for kind in accountants)
    print(f"scale {scale}: ε = {1 / scale:.2f}; PLD {pld:.2f}, RDP {rdp:.2f}, PRV {prv:.2f}")
