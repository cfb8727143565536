"""nanochat (modeling_nanochat.py): norms without weights, also of the embedding, and a squared ReLU."""

from __future__ import annotations

from memcheck.models.decoder import decoder, plain_mlp, read_attention, read_sizes
from memcheck.models.module_types import HALF
from memcheck.models.reader import ConfigReader
from memcheck.models.types import Architecture, Block, Norm


def read(config: ConfigReader) -> Architecture:
    """Read a configuration of ``model_type: nanochat``: queries and keys are normalised after the rotation, logits are
    capped.
    """
    size = read_sizes(config, head_dim_key=False)

    def norm(width: int, name: str) -> Norm:
        return Norm("l2", width, weight=False, name=name)

    attention = read_attention(
        config,
        size,
        query_norm=norm(size.head_dim, "self_attn.q_norm"),
        key_norm=norm(size.head_dim, "self_attn.k_norm"),
        rotation=HALF._replace(before_norms=True),
    )
    activation = config.activation(default="relu2")
    mlp = plain_mlp(size.hidden, config.integer("intermediate_size"), activation, "mlp.fc1", "mlp.fc2")
    block = Block(
        mixer=attention,
        mlp=mlp,
        input_norm=norm(size.hidden, "input_layernorm"),
        mlp_norm=norm(size.hidden, "post_attention_layernorm"),
    )
    capped = config.number("final_logit_softcapping", default=15.0) > 0
    return decoder(
        config,
        size,
        ((block, size.layers),),
        tied=False,
        final_norm=norm(size.hidden, "model.norm"),
        embedding_norm=norm(size.hidden, "model.norm"),
        final_softcap=capped,
    )
