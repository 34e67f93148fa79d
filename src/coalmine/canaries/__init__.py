"""What is planted: update vectors, crafted samples, phrases, gradient pairs."""
