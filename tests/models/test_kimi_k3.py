"""The whole K3 text model: equal to its equations however it is cut, batched, packed or trained."""

import pytest
import torch

import interlace
import tiny_models
from closeness import assert_close, assert_no_worse, error
from interlace.config import preset
from interlace.layers import AttentionResidualBlock, Block
from interlace.ops.residual import attention_residual_reference
from tiny_models import K3

EPS = 1e-5


def model(dtype="float64", **changes):
    return tiny_models.model(dtype, **{**K3, **changes})


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 61, (batch, length), generator=torch.Generator().manual_seed(length))


def read(bank, live, norm, proj):
    return attention_residual_reference(
        bank, live, norm.weight, proj.weight[0], EPS, compute_dtype=torch.float64
    )


def by_the_equations(lm, ids, **faults):
    """The pseudocode of spec section 6 around the model's own mixers and feed-forwards.

    Each fault is one that has been made elsewhere; without one this is the model.
    """
    stack = lm.model
    block = faults.get("block", lm.config.attn_res_block_size)
    live, bank = stack.embed_tokens(ids), []
    for i, layer in enumerate(stack.layers):
        x = live
        if bank:
            x = read(bank, live, layer.self_attention_res_norm, layer.self_attention_res_proj)
        if i % block == 0:
            bank.append(x if faults.get("mixed_banked") else live)
            live = None
        y = layer.self_attn(layer.input_layernorm(x))
        live = y if live is None else live + y
        x = read(bank, live, layer.mlp_res_norm, layer.mlp_res_proj)
        live = live + layer.feed(x)
    if not faults.get("no_last"):
        live = read(bank, live, stack.output_attn_res_norm, stack.output_attn_res_proj)
    return lm.lm_head(stack.norm(live))


@pytest.mark.parametrize("block", [1, 2, 3, 5, 9])
def test_the_model_is_its_equations(block):
    lm, ids = model(attn_res_block_size=block), tokens(2, 19)
    assert_close(lm(ids), by_the_equations(lm, ids), 1e-10)


@pytest.mark.parametrize(
    "fault",
    [{"mixed_banked": True}, {"no_last": True}, {"block": 1}],
    ids=["mixture banked", "last mixture left out", "block counted in sublayers"],
)
def test_what_has_been_mistaken_elsewhere_shows(fault):
    lm, ids = model(), tokens(2, 19)
    assert error(by_the_equations(lm, ids, **fault), lm(ids)) > 1e-2


def test_gradients_are_those_of_the_equations():
    lm, ids = model().requires_grad_(True), tokens(2, 13)
    names, parameters = zip(*lm.named_parameters(), strict=True)
    dy = torch.randn(2, 13, 61, dtype=torch.float64)

    def gradients(logits):
        return torch.autograd.grad(logits, parameters, dy, allow_unused=True)

    unread = set()
    for name, got, want in zip(
        names, gradients(lm(ids)), gradients(by_the_equations(lm, ids)), strict=True
    ):
        if want is None:
            assert got is None, name
            # an expert that nobody chose has none either
            unread |= {name} if ".experts." not in name else set()
        else:
            assert_close(got, want, 1e-9, name)
            assert float(want.abs().max()) > 0, name
    # the attention of layer 0 has nothing to choose from; its weights are published all the same
    first = "model.layers.0.self_attention_res_"
    assert unread == {first + "norm.weight", first + "proj.weight"}


# in float32 as much as may separate us from another implementation: docs/numerics.md
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-4)])
def test_any_split_gives_the_same_logits(dtype, tolerance):
    lm, ids = model(dtype), tokens(2, 75)
    whole = lm(ids)
    for cuts in ([75], [1, 74], [33, 1, 1, 40], [64, 11], [70, 1, 1, 1, 1, 1]):
        cache = lm.new_cache(2)
        parts = [lm(part, cache=cache) for part in ids.split(cuts, 1)]
        assert_close(torch.cat(parts, 1), whole, tolerance, f"split {cuts}")


def test_rows_padded_batched_and_packed_are_those_of_the_row_alone():
    lm, lengths = model(), [3, 40, 9]
    ids = tokens(3, 40)
    alone = [lm(ids[row : row + 1, :length]) for row, length in enumerate(lengths)]
    padded = lm(ids, lengths=lengths)
    packed = torch.cat([ids[row, :length] for row, length in enumerate(lengths)])[None]
    packed = lm(packed, cu_seqlens=[0, 3, 43, 52])
    for row, (length, one) in enumerate(zip(lengths, alone, strict=True)):
        assert_close(padded[row : row + 1, :length], one, 1e-10, "padded")
    assert_close(packed, torch.cat(alone, 1), 1e-10, "packed")
    cache = lm.new_cache(3)
    last = lm(ids, lengths=lengths, cache=cache, last_only=True)
    assert_close(last, torch.cat([one[:, -1:] for one in alone]), 1e-10, "last")


def test_bfloat16_is_no_worse_than_its_equations_and_keeps_its_streams_narrow():
    narrow, ids, seen = model("bfloat16"), tokens(2, 30), []
    plain = by_the_equations(narrow, ids)
    narrow.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    wide = model("bfloat16").double()
    assert_no_worse(narrow(ids), plain=plain.float(), exact=wide(ids))
    assert seen == [torch.bfloat16]


def test_a_float32_stream_stays_one_through_every_restart():
    lm, seen = model("bfloat16"), []
    lm.residual_dtype = torch.float32
    for layer in lm.model.layers:
        layer.input_layernorm.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
        layer.post_attention_layernorm.register_forward_pre_hook(
            lambda _, args: seen.append(args[0].dtype)
        )
    lm(tokens(1, 4))
    assert seen == [torch.float32] * 10


def test_full_form_gives_every_output_a_share_of_its_own():
    lm, ids = model(attn_res_block_size=0), tokens(2, 11)
    stack, bank = lm.model, [lm.model.embed_tokens(ids)]
    for i, layer in enumerate(stack.layers):
        x = bank[0]
        if i:
            pair = layer.self_attention_res_norm, layer.self_attention_res_proj
            x = read(bank[:-1], bank[-1], *pair)
        bank.append(layer.mix(x))
        bank.append(layer.feed(read(bank[:-1], bank[-1], layer.mlp_res_norm, layer.mlp_res_proj)))
    x = read(bank[:-1], bank[-1], stack.output_attn_res_norm, stack.output_attn_res_proj)
    assert_close(lm(ids), lm.lm_head(stack.norm(x)), 1e-10)
    cache = lm.new_cache(2)
    parts = [lm(part, cache=cache) for part in ids.split([4, 1, 6], 1)]
    assert_close(torch.cat(parts, 1), lm(ids), 1e-10)
    assert error(model(attn_res_block_size=1)(ids), lm(ids)) > 1e-2


def test_shares_start_even():
    lm = interlace.build(tiny_models.small(**K3), seed=3)
    for name, value in lm.named_parameters():
        if name.endswith("res_proj.weight"):
            assert not value.any(), name
        elif "res_norm" in name:
            assert bool((value == 1).all()), name


def test_b102_every_stream_may_be_spoiled_after_its_last_use():
    """A wrong alias would carry the spoil into the logits."""
    lm, ids = model(), tokens(1, 9)
    wanted = lm(ids)

    def keep(module, args):
        # what a sublayer reads is its own copy, but for the first, which is the embedding itself
        if module is not lm.model.layers[0].input_layernorm:
            kept.append(args[0])

    def spoil_read(module, args, output):
        for x in kept:
            x.fill_(float("nan"))

    kept = []
    for layer in lm.model.layers:
        layer.input_layernorm.register_forward_pre_hook(keep)
        layer.post_attention_layernorm.register_forward_pre_hook(keep)
        layer.register_forward_hook(spoil_read)
    assert_close(lm(ids), wanted, 1e-12)
    assert len(kept) == 9


def test_blocks_of_either_form_are_chosen_by_the_config():
    assert {type(layer) for layer in model().model.layers} == {AttentionResidualBlock}
    assert {type(layer) for layer in model(attn_res_block_size=None).model.layers} == {Block}


def latent_experts(layer, x):
    """Spec section 7.3 in float64, token by token, from the layer's own weights."""
    w = {name: value.double() for name, value in layer.state_dict().items()}
    k, caps = layer.config.num_experts_per_token, (4.0, 25.0)

    def mlp(x, gate, up, down):
        g, u = gate @ x, up @ x
        g = caps[0] * torch.tanh(g / caps[0]) * torch.sigmoid(g)
        return down @ (g * caps[1] * torch.tanh(u / caps[1]))

    rows = []
    for token in x.flatten(0, 1).double():
        s = torch.sigmoid(w["gate.weight"] @ token)
        chosen = (s + w["gate.e_score_correction_bias"]).topk(k).indices
        shares = s[chosen] / s[chosen].sum() * layer.config.routed_scaling_factor
        z = w["routed_expert_down_proj.weight"] @ token
        u = sum(
            share * mlp(z, *(w[f"experts.{e}.{m}.weight"] for m in ("w1", "w3", "w2")))
            for e, share in zip(chosen.tolist(), shares, strict=True)
        )
        u = u * torch.rsqrt(u.square().mean() + EPS) * w["routed_expert_norm.weight"]
        y = w["routed_expert_up_proj.weight"] @ u
        names = (f"shared_experts.{m}_proj.weight" for m in ("gate", "up", "down"))
        rows.append(y + mlp(token, *(w[name] for name in names)))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("length", [1, 14])
def test_latent_experts_are_their_equations(dtype, tolerance, length):
    layer = model(dtype, routed_scaling_factor=1.7).model.layers[2].block_sparse_moe
    x = torch.randn(2, length, 40).to(layer.gate.weight.dtype)
    assert_close(layer(x), latent_experts(layer, x), tolerance)


def test_latent_experts_without_a_norm():
    lm = model(latent_moe_use_norm=False)
    assert not hasattr(lm.model.layers[1].block_sparse_moe, "routed_expert_norm")
    ids = tokens(1, 9)
    assert_close(lm(ids), by_the_equations(lm, ids), 1e-10)


def test_router_of_a_bfloat16_model_scores_in_float32():
    layer = model("bfloat16").model.layers[1].block_sparse_moe
    x = torch.randn(11, 40).bfloat16()
    scores = layer.gate(x)
    assert scores.dtype == torch.float32
    exact = torch.sigmoid(x.double() @ layer.gate.weight.double().T)
    assert_close(scores, exact, 1e-6)


def test_the_tiny_preset_is_whole():
    lm = interlace.build("kimi-k3-tiny", seed=0)
    config = preset("kimi-k3-tiny")
    assert config.full_attn_layers == (4, 5)
    assert {type(layer.self_attn).__name__ for layer in lm.model.layers[3:]} == {"GatedMLA"}
    assert not lm.model.layers[0].is_moe
    ids = torch.randint(0, 256, (1, 21))
    cache = lm.new_cache(1)
    parts = [lm(part, cache=cache) for part in ids.split([20, 1], 1)]
    assert_close(torch.cat(parts, 1), lm(ids), 1e-5)
