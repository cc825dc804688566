"""What a call holds at its worst moment is within the formula, and not far within."""

import pytest
import torch

import interlace
from interlace.config import preset
from interlace.config.activations import activation_bytes
from memory_watch import peak_bytes

WIDE = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 300}
K3 = preset("kimi-k3-tiny").replace(**WIDE)
CONFIGS = {
    "kimi_linear": preset("kimi-linear-tiny").replace(**WIDE),
    "k3": K3,
    "k3, small blocks": K3.replace(attn_res_block_size=1),
    "k3, full form": K3.replace(attn_res_block_size=0),
    "k3, plain residuals": K3.replace(attn_res_block_size=None),
    "k3, wide feed-forwards": K3.replace(intermediate_size=3000, moe_intermediate_size=900),
    "k3, narrow mixers": K3.replace(
        kda_num_heads=1, num_attention_heads=1, intermediate_size=64, moe_intermediate_size=16
    ),
    "k3, published heads": K3.replace(
        num_attention_heads=4,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        kv_lora_rank=512,
        kda_head_dim=128,
    ),
}


@torch.inference_mode()
@pytest.mark.parametrize("native", [False, True], ids=["torch", "native"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_step_and_a_chunk_hold_what_the_formula_says(name, dtype, native, monkeypatch):
    """The formula is that of torch's forms; a native delta rule needs less."""
    if not native:
        choose = "interlace.ops.delta_rule.choose.refusal"
        monkeypatch.setattr(choose, lambda *_: "this test is about torch's forms")
    config, before = CONFIGS[name], 40
    lm = interlace.build(config, dtype=dtype)
    for batch, tokens in ((1, 1), (4, 1), (1, 96), (2, 33)):
        cache = lm.new_cache(batch, capacity=before + tokens)
        lm(torch.randint(0, 256, (batch, before)), cache=cache, last_only=True)
        ids = torch.randint(0, 256, (batch, tokens))
        peak = peak_bytes(lambda i=ids, c=cache: lm(i, cache=c, last_only=True))
        bound = activation_bytes(config, batch, tokens, before + tokens, dtype)
        assert peak <= bound, f"{batch} rows of {tokens}: {peak} of {bound}"
        close = native or tokens == 1 or bound < 3 * peak
        assert close, f"{batch} rows of {tokens}: {peak} of {bound}"


def test_the_watch_counts_what_lives_at_once():
    def chain() -> torch.Tensor:
        a = torch.zeros(1000)
        for _ in range(5):
            a = a + 1
        return a.view(10, 100)[2:]

    assert peak_bytes(chain) == 8000
