"""Designing samples whose gradients are unlike the updates of mock clients: the loss, the loop, images and texts."""
