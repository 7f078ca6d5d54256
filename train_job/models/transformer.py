"""A decoder-only transformer: pre-LayerNorm blocks of causal multi-head attention and a GELU MLP.

The architecture of GPT-2 (Radford et al., 2019, section 2.3) with an untied, bias-free head. Shapes below
use b for batch, t for time (at most `context`), d for `d_model`, h for heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

_EMBED_INIT = nnx.initializers.normal(stddev=0.02)  # as GPT-2; keeps the first logits near uniform


@dataclass(frozen=True)
class TransformerConfig:
    """The transformer's shape."""

    layers: int
    d_model: int
    heads: int
    ffn: int
    context: int
    vocab: int = 256

    # How weights are cut over devices of the axis "tensor", by name (Shoeybi et al., 2019, section 3): heads and hidden
    # units are spread, so that a block has one sum over the devices behind its attention and one behind its MLP.
    tensor_parallel: ClassVar[Mapping[str, tuple[str | None, ...]]] = {
        "blocks.*.attn.[qkv]*.kernel": (None, "tensor"),
        "blocks.*.attn.[qkv]*.bias": ("tensor",),
        "blocks.*.attn.out.kernel": ("tensor", None),
        "blocks.*.mlp.up.kernel": (None, "tensor"),
        "blocks.*.mlp.up.bias": ("tensor",),
        "blocks.*.mlp.down.kernel": ("tensor", None),
        "head.kernel": (None, "tensor"),
    }

    def build(self, rngs: nnx.Rngs) -> Transformer:
        """A Transformer with fresh float32 weights."""
        return Transformer(self, rngs)


class Attention(nnx.Module):
    """Causal multi-head self-attention, [b, t, d] -> [b, t, d]."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        width = config.d_model
        self.heads = config.heads
        self.query = nnx.Linear(width, width, rngs=rngs)
        self.key = nnx.Linear(width, width, rngs=rngs)
        self.value = nnx.Linear(width, width, rngs=rngs)
        self.out = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        query, key, value = (self._split(project(x)) for project in (self.query, self.key, self.value))
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.reshape(x.shape))

    def _split(self, x: jax.Array) -> jax.Array:
        batch, time, width = x.shape
        return x.reshape(batch, time, self.heads, width // self.heads)


class Mlp(nnx.Module):
    """Two linear layers around a GELU, [b, t, d] -> [b, t, d]."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.up = nnx.Linear(config.d_model, config.ffn, rngs=rngs)
        self.down = nnx.Linear(config.ffn, config.d_model, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.gelu(self.up(x)))


class Block(nnx.Module):
    """Attention, then the MLP, each normalised before and added to its input."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.attn_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.attn = Attention(config, rngs)
        self.mlp_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.mlp = Mlp(config, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attn(self.attn_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nnx.Module):
    """Next-token logits: int32 tokens [b, t] -> float32 logits [b, t, vocab], t up to `context`.

    dtype: of what the blocks add to, None for the weights'. The embeddings keep theirs: the gradient of a frequent
    token is a sum of thousands, which bfloat16 could not add up. remat: see train_job.compute.
    """

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.token_embed = nnx.Embed(config.vocab, config.d_model, embedding_init=_EMBED_INIT, rngs=rngs)
        self.position_embed = nnx.Embed(config.context, config.d_model, embedding_init=_EMBED_INIT, rngs=rngs)
        self.blocks = nnx.List([Block(config, rngs) for _ in range(config.layers)])
        self.final_norm = nnx.LayerNorm(config.d_model, rngs=rngs)
        self.head = nnx.Linear(
            config.d_model, config.vocab, use_bias=False, preferred_element_type=jnp.float32, rngs=rngs
        )
        self.dtype: Any = None
        self.remat = False

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.token_embed(tokens) + self.position_embed(jnp.arange(tokens.shape[1]))
        x = x if self.dtype is None else x.astype(self.dtype)
        run = nnx.remat(Block.__call__) if self.remat else Block.__call__
        for block in self.blocks:
            x = run(block, x)
        return self.head(self.final_norm(x))
