"""A prompt in, text out: chunks, streams, limits, marks, bytes; what is refused."""

import pytest
import torch

import interlace
from closeness import assert_close, error
from interlace.config import sizes
from interlace.config.activations import prefill_activation_bytes
from interlace.errors import InputError, MemoryLimitError
from interlace.generation import memory, streams
from interlace.generation.prompts import checked_ids
from interlace.generation.sampling import Sampler
from interlace.text import ByteTokenizer
from small_models import marked, tiny

SMILE = b"\xf0\x9f\x98\x80"


@pytest.fixture(scope="module")
def lm():
    return tiny()


@pytest.fixture
def logits(monkeypatch):
    """Every logits vector that was sampled from."""
    seen = []
    pick = Sampler.pick

    def record(self, logits):
        seen.append(logits.clone())
        return pick(self, logits)

    monkeypatch.setattr(Sampler, "pick", record)
    return seen


def script(monkeypatch, ids):
    """Make the sampler give these ids, whatever the logits."""
    given = iter(ids)
    monkeypatch.setattr(Sampler, "pick", lambda self, logits: next(given))


@pytest.mark.parametrize("chunk", [1, 7, 16, 49, 50, 51])
def test_prefill_chunk_changes_nothing_and_forgets_nothing(lm, logits, chunk):
    generator = torch.Generator().manual_seed(7)
    end = torch.randint(256, (34,), generator=generator).tolist()
    prompts = [torch.randint(256, (16,), generator=generator).tolist() + end for _ in range(2)]
    for prompt in prompts:
        interlace.generate(lm, prompt, max_tokens=1, prefill_chunk=chunk)
        assert_close(logits[-1], lm(torch.tensor([prompt]))[0, -1], 1e-5)
    assert error(logits[0], logits[1]) > 1e-3


def test_greedy_is_the_argmax_of_full_forwards(lm):
    stream = interlace.stream(lm, b"abc", max_tokens=6, prefill_chunk=2)
    list(stream)
    ids = list(b"abc")
    for token in stream.result.token_ids:
        assert token == int(lm(torch.tensor([ids]))[0, -1].argmax())
        ids.append(token)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_stream_joined_is_the_text(lm, temperature):
    options = {"max_tokens": 12, "temperature": temperature, "top_p": 0.95, "seed": 4}
    stream = interlace.stream(lm, "def f(x):", **options)
    pieces = list(stream)
    assert all(pieces)
    assert "".join(pieces) == interlace.generate(lm, "def f(x):", **options)
    assert stream.result.new_tokens == 12


def test_seed_repeats_and_another_differs(lm):
    def text(seed):
        return interlace.generate(lm, "x", max_tokens=12, temperature=1.0, seed=seed)

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_text_bytes_and_ids_are_one_prompt(lm):
    texts = [interlace.generate(lm, prompt, max_tokens=9) for prompt in ("hi", b"hi", [104, 105])]
    assert len(set(texts)) == 1


def test_character_over_four_tokens_streams_whole(lm, monkeypatch):
    script(monkeypatch, SMILE)
    assert list(interlace.stream(lm, "x", max_tokens=4)) == ["\U0001f600"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_character_cut_by_max_tokens_ends_the_same_streamed_or_not(lm, monkeypatch, count):
    ids = b"ok" + SMILE
    script(monkeypatch, ids)
    stream = interlace.stream(lm, "x", max_tokens=2 + count)
    pieces = list(stream)
    assert not any("\ufffd" in piece for piece in pieces)
    script(monkeypatch, ids)
    assert "".join(pieces) == interlace.generate(lm, "x", max_tokens=2 + count) == "ok"
    assert stream.result.finish_reason == "length"


def test_no_new_tokens_reads_the_prompt_and_makes_none(lm):
    stream = interlace.stream(lm, "abc", max_tokens=0)
    assert list(stream) == []
    result = stream.result
    assert (result.new_tokens, result.finish_reason, result.text) == (0, "length", "")
    assert (result.cached_tokens, result.capacity) == (3, 3)
    assert interlace.generate(lm, "abc", max_tokens=0) == ""


@pytest.mark.parametrize("count", [1, 2, 5])
def test_max_tokens_is_kept_and_named(lm, count):
    stream = interlace.stream(lm, "abc", max_tokens=count)
    list(stream)
    assert (stream.result.new_tokens, stream.result.finish_reason) == (count, "length")
    assert (stream.result.decode_tokens_per_second is None) == (count == 1)
    assert stream.result.prefill_tokens_per_second > 0


@pytest.mark.parametrize("cap", [3, 9])
def test_end_mark_stops_even_at_the_cap(monkeypatch, cap):
    script(monkeypatch, [65, 66, 257, 67])
    stream = interlace.stream(marked(), "x", max_tokens=cap)
    assert "".join(stream) == "AB"
    assert stream.result.finish_reason == "stop"
    assert stream.result.token_ids == (65, 66, 257)


def test_end_mark_is_drawn_unless_ignored_and_silent_ids_never(monkeypatch):
    lm = marked()
    likely = torch.full((259,), -30.0)
    likely[[65, 256, 257, 258]] = 0
    monkeypatch.setattr(type(lm), "forward", lambda self, tokens, **_: likely[None, None])
    options = {"max_tokens": 16, "temperature": 1.0, "seed": 2}
    free = interlace.stream(lm, "x", **options)
    list(free)
    assert free.result.finish_reason == "stop"
    kept = interlace.stream(lm, "x", **options, ignore_eos=True)
    assert len("".join(kept)) == 16
    drawn = set(free.result.token_ids) | set(kept.result.token_ids)
    assert not drawn & {256, 258}
    assert max(kept.result.token_ids) < 256


def test_text_follows_the_start_mark_and_ids_do_not(logits):
    lm = marked()
    stream = interlace.stream(lm, "ab", max_tokens=1)
    list(stream)
    assert stream.result.prompt_tokens == 3
    assert_close(logits[-1], lm(torch.tensor([[256, 97, 98]]))[0, -1], 1e-5)
    stream = interlace.stream(lm, [97, 98], max_tokens=1)
    list(stream)
    assert stream.result.prompt_tokens == 2


def storages(thing, seen):
    """Bytes of the distinct storages of numbers that are reachable from `thing`, by address."""
    if isinstance(thing, torch.Tensor):
        if thing.is_floating_point():
            storage = thing.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
    elif isinstance(thing, dict | list | tuple):
        for part in thing.values() if isinstance(thing, dict) else thing:
            storages(part, seen)
    elif type(thing).__module__.startswith("interlace.caches"):
        storages(vars(thing), seen)
    return seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_the_formula_and_what_is_allocated(dtype):
    lm = interlace.build("kimi-linear-tiny", dtype=dtype).requires_grad_(False)
    stream = interlace.stream(lm, b"0123456789", max_tokens=7)
    list(stream)
    result, config = stream.result, lm.config
    assert (result.capacity, result.cached_tokens) == (17, 16)
    assert result.latent_bytes == sizes.latent_cache_bytes(config, 1, 17, dtype)
    assert result.state_bytes == sizes.delta_state_bytes(config, 1, dtype)
    assert result.expanded_bytes == sizes.expanded_cache_bytes(config, 1, 17, dtype)
    held = sum(storages(stream.cache, {}).values())
    assert held == result.latent_bytes + result.state_bytes


def test_model_without_global_layers_needs_no_latents():
    kda, full = interlace.HybridConfig.layout(3, None, final_global=False)
    lm = tiny(kda_layers=kda, full_attn_layers=full, num_hidden_layers=3)
    stream = interlace.stream(lm, "abcd", max_tokens=3)
    list(stream)
    result = stream.result
    assert (result.latent_bytes, result.expanded_bytes) == (0, 0)
    assert (result.cached_tokens, result.capacity) == (6, 7)


def test_progress_counts_the_prompt(lm):
    seen = []
    stream = interlace.stream(
        lm, b"x" * 10, max_tokens=1, prefill_chunk=4, progress=lambda *call: seen.append(call)
    )
    assert seen == []
    list(stream)
    assert seen == [(4, 10), (8, 10), (10, 10)]


@pytest.mark.parametrize("prompt", ["", b"", []])
def test_empty_prompt_is_refused(lm, prompt):
    with pytest.raises(InputError, match="must not be empty"):
        interlace.stream(lm, prompt)


@pytest.mark.parametrize("token", [-1, 256])
def test_id_out_of_range_is_refused(lm, token):
    with pytest.raises(InputError, match=rf"0\.\.255, got {token} at position 1"):
        interlace.stream(lm, [3, token])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": -1}, "max_tokens must be at least 0 and an integer, got -1"),
        ({"prefill_chunk": 0}, "prefill_chunk must be at least 1"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"max_tokens": 1_048_575}, "fit in the model's 1,048,576 tokens, got 2 "),
    ],
)
def test_options_out_of_range_are_refused(lm, options, message):
    with pytest.raises(InputError, match=message):
        interlace.stream(lm, "ab", **options)


def test_large_vocabulary_takes_ids_and_no_text():
    lm = tiny(vocab_size=600)
    with pytest.raises(InputError, match="only to a model with a tokenizer"):
        interlace.stream(lm, "text")
    stream = interlace.stream(lm, [599, 0], max_tokens=3)
    assert list(stream) == []
    assert stream.result.new_tokens == 3
    lm.tokenizer = ByteTokenizer(600)
    stream = interlace.stream(lm, "text", max_tokens=5)
    list(stream)
    assert max(stream.result.token_ids) < 256


def test_context_beyond_the_memory_is_refused_before_work(lm, monkeypatch, logits):
    monkeypatch.setattr(memory, "available", lambda: memory.Available(900_000, "the system"))
    with pytest.raises(
        MemoryLimitError, match=r"100,000 tokens .*latent cache 16\.0 MB.*900\.0 kB"
    ):
        interlace.stream(lm, "x" * 99_990, max_tokens=10)
    assert logits == []


def test_chunk_shrinks_where_memory_is_short(lm, monkeypatch):
    config = lm.config
    fixed = sizes.cache_bytes(config, 1, 700) + 16 * 700
    room = fixed + prefill_activation_bytes(config, 1, 256, 700)
    monkeypatch.setattr(memory, "available", lambda: memory.Available(room, "the system"))
    assert interlace.stream(lm, "x" * 690, max_tokens=10).result.prefill_chunk == 256
    with pytest.raises(MemoryLimitError, match="activations"):
        interlace.stream(lm, "x" * 690, max_tokens=10, prefill_chunk=512)
    monkeypatch.setattr(memory, "available", lambda: None)
    assert interlace.stream(lm, "x" * 690, max_tokens=10).result.prefill_chunk == 512


@pytest.mark.parametrize("ids", [[1.0, 2], ["a"], [None]], ids=repr)
def test_ids_that_do_not_count_are_refused(ids):
    with pytest.raises(InputError, match="must be integers"):
        checked_ids(ids, 256)


@pytest.mark.parametrize("wrong", ["3", 2.5, True], ids=repr)
def test_sizes_of_another_type_are_refused(wrong):
    for size in ("prefill_chunk", "batch_size"):
        with pytest.raises(InputError, match=size):
            streams.check_sizes(**{size: wrong})
