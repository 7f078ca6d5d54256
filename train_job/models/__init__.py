"""The architectures of the presets, as Flax NNX modules."""
