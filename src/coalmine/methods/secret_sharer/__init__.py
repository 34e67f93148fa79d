"""Secret sharer: phrases inserted into users' data, and what the model memorizes of them (Thakkar et al. 2020)."""
