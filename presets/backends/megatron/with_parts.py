"""Runs Megatron-LM with parts of a model that none of its arguments can describe. `primus train` starts it.

    python with_parts.py '{"PART": {SETTINGS}, ...}' CHECKOUT/pretrain_gpt.py ARGUMENT...

Each part changes a class of Megatron-LM's core before its program runs. The classes are those of the commit in
presets/backends/pins.yaml, and a part whose class has changed stops with an error before training begins.
"""

import json
import runpy
import sys


def soft_cap(logits, cap):
    return cap * (logits / cap).tanh()


def yarn(**settings):
    """Rotary positions by yarn without latent attention. The model reads them from attributes of its config."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    TransformerConfig.position_embedding_type = "yarn"
    for name, value in settings.items():
        setattr(TransformerConfig, f"yarn_{name}", value)


def rope_scaling(factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """Llama 3's scaled positions. The program reads no --rope-scaling-factor: it builds every model with 8, 1, 4 and 8192."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    scale = RotaryEmbedding._apply_scaling

    def scale_as_the_model_does(self, frequencies, **_):
        return scale(self, frequencies, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings)

    RotaryEmbedding._apply_scaling = scale_as_the_model_does


def rope_interpolation(factor):
    """Positions divided by a factor. The program does not read its own --rotary-seq-len-interpolation-factor."""
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

    build = RotaryEmbedding.__init__

    def build_interpolated(self, *args, **kwargs):
        build(self, *args, **{**kwargs, "seq_len_interpolation_factor": factor})

    RotaryEmbedding.__init__ = build_interpolated


def router_softcap(cap):
    """Caps the logits of routers."""
    from megatron.core.transformer.moe.router import Router

    gating = Router.gating
    Router.gating = lambda self, hidden: soft_cap(gating(self, hidden), cap)


def final_softcap(cap):
    """Caps the logits of the output layer."""
    from megatron.core.models.gpt import GPTModel

    build = GPTModel.__init__

    def build_capped(self, *args, **kwargs):
        build(self, *args, **kwargs)
        if hasattr(self, "output_layer"):
            self.output_layer.register_forward_hook(lambda layer, inputs, output: (soft_cap(output[0], cap), *output[1:]))

    GPTModel.__init__ = build_capped


def mxfp4():
    """Products in MXFP4, a recipe of AMD's Transformer Engine. The arguments name it "custom"."""
    from megatron.core import fp4_utils
    from transformer_engine.common import recipe

    if not hasattr(recipe, "MXFP4BlockScaling"):
        sys.exit("fp4_recipe mxfp4 needs AMD's Transformer Engine: this one has no MXFP4BlockScaling")
    fp4_utils.get_fp4_recipe = lambda config: recipe.MXFP4BlockScaling()


PARTS = {part.__name__: part for part in (yarn, rope_scaling, rope_interpolation, router_softcap, final_softcap, mxfp4)}

if __name__ == "__main__":
    parts, program, *arguments = sys.argv[1:]
    for name, settings in json.loads(parts).items():
        PARTS[name](**settings)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")
