"""Left-padded, packed and late rows give each row what it gets alone, with a cache and without."""

from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from closeness import assert_close, error
from interlace.errors import CacheError, InputError
from small_models import tiny

LM = tiny().double()
SIZES = st.lists(st.integers(0, 23), min_size=1, max_size=5).filter(any)


def ids(count: int, seed: int) -> torch.Tensor:
    return torch.randint(256, (count,), generator=torch.Generator().manual_seed(seed))


def rows_of(sizes):
    return [ids(size, row) for row, size in enumerate(sizes)]


def left(rows, width, pad=7):
    return torch.stack([torch.cat([torch.full((width - len(r),), pad), r]) for r in rows])


def state(cache, row=0):
    """Everything that a cache holds of one row."""
    parts, size = [], int(cache.lengths[row])
    for layer in cache.layers:
        if hasattr(layer, "state"):
            parts += [layer.state[row], layer.conv_q[row], layer.conv_k[row], layer.conv_v[row]]
        else:
            parts.append(layer.view()[row, :size])
    return torch.cat([part.flatten() for part in parts])


def check_rows(cache, rows):
    """The cache holds of each row what it holds of the row alone."""
    assert cache.lengths.tolist() == [len(row) for row in rows]
    for number, row in enumerate(rows):
        alone = LM.new_cache(1)
        if len(row):
            LM(row[None], cache=alone)
            assert_close(state(cache, number), state(alone), 1e-10, f"row {number}")


@settings(deadline=None, max_examples=8)
@given(sizes=SIZES, extra=st.integers(0, 3), cut=st.integers(1, 23))
def test_left_padded_rows_are_those_of_the_row_alone(sizes, extra, cut):
    rows, width = rows_of(sizes), max(sizes) + extra
    whole, cache = left(rows, width), LM.new_cache(len(rows))
    logits = LM(whole, lengths=sizes, padding="left")
    last = LM(whole, lengths=sizes, padding="left", cache=cache, last_only=True)
    for number, row in enumerate(rows):
        if len(row):
            expected = LM(row[None])[0]
            assert_close(logits[number, width - len(row) :], expected, 1e-10)
            assert_close(last[number, 0], expected[-1], 1e-10)
    check_rows(cache, rows)
    # the same in two calls, of which the first may hold nothing of a row
    split = LM.new_cache(len(rows))
    for part in (slice(None, cut), slice(cut, None)):
        if whole[:, part].numel():
            taken = [max(0, min(s, min(cut, width) - (width - s))) for s in sizes]
            if part.start is not None:
                taken = [size - had for size, had in zip(sizes, taken, strict=True)]
            LM(whole[:, part], lengths=taken, padding="left", cache=split)
    check_rows(split, rows)


@settings(deadline=None, max_examples=8)
@given(sizes=SIZES, more=st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any))
def test_packed_documents_are_the_rows_of_a_cache(sizes, more):
    rows = rows_of(sizes)
    more = more[: len(sizes)] if any(more[: len(sizes)]) else [1] * len(sizes)
    after = [ids(size, 50 + row) for row, size in enumerate(more)]
    cache = LM.new_cache(len(rows))
    for part in (rows, after):
        offsets = [0, *accumulate(len(row) for row in part)]
        pack = torch.cat(part)[None]
        fork = cache.clone()
        logits = LM(pack, cu_seqlens=offsets, cache=cache)
        last = LM(pack, cu_seqlens=offsets, cache=fork, last_only=True)
        assert logits.shape[:2] == pack.shape
        for number, (start, end) in enumerate(pairwise(offsets)):
            if end > start:
                whole = rows[number] if part is rows else torch.cat([rows[number], after[number]])
                expected = LM(whole[None])[0, -(end - start) :]
                assert_close(logits[0, start:end], expected, 1e-10)
                assert_close(last[number, 0], expected[-1], 1e-10)
    check_rows(cache, [torch.cat(pair) for pair in zip(rows, after, strict=True)])


def test_packed_rows_of_a_batch_are_rows_of_the_cache_too():
    pack, offsets = ids(24, 3).view(2, 12), [0, 5, 12, 12, 24]
    cache = LM.new_cache(4)
    logits = LM(pack, cu_seqlens=offsets, cache=cache)
    assert_close(logits, LM(pack, cu_seqlens=offsets), 1e-10)
    assert cache.lengths.tolist() == [5, 7, 0, 12]


def test_last_token_of_each_packed_document_without_a_cache():
    pack, offsets = ids(24, 3).view(2, 12), [0, 5, 12, 24]
    last = LM(pack, cu_seqlens=offsets, last_only=True)
    every = LM(pack, cu_seqlens=offsets).flatten(0, 1)
    assert_close(last[:, 0], every[[4, 11, 23]], 1e-10)


def test_row_may_begin_in_any_call():
    rows = rows_of([9, 4, 1])
    cache = LM.new_cache(3)
    calls = [([0, 6], [0, 0], [0, 0]), ([6, 8], [0, 4], [0, 0]), ([8, 9], [4, 4], [0, 1])]
    for call in calls:
        parts = [row[a:b] for row, (a, b) in zip(rows, call, strict=True)]
        padded = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=3)
        LM(padded, lengths=[len(part) for part in parts], cache=cache)
    check_rows(cache, rows)


def test_side_of_the_padding_matters_and_is_named():
    row = left([ids(4, 0)], 9)
    assert error(LM(row, lengths=[4], padding="left")[:, -1], LM(row, lengths=[4])[:, -1]) > 1e-3
    with pytest.raises(InputError, match='"right" or "left", got \'middle\''):
        LM(row, padding="middle")


def test_cache_of_other_rows_than_documents_is_refused():
    with pytest.raises(CacheError, match="for 3 rows"):
        LM(ids(9, 0)[None], cu_seqlens=[0, 2, 5, 9], cache=LM.new_cache(1))
