import itertools
from collections import Counter

import numpy as np
import pytest
import torch

from interlace.errors import InputError
from interlace.training.data import (
    BOS,
    OVERRUN,
    TOO_LONG,
    UNCOUNTED,
    PackedRows,
    StagedRows,
    read_documents,
)

DOCUMENTS = [bytes([65 + i]) * n for i, n in enumerate((5, 1, 30, 12, 7))]
EOS = 257


def packed(**changes):
    options = {
        "documents": DOCUMENTS,
        "sequence_length": 11,
        "rows": 4,
        "seed": 3,
        "eos": EOS,
        **changes,
    }
    return PackedRows(**options)


def test_targets_are_the_next_tokens_and_boundaries_are_document_starts():
    data = packed()
    for step in range(9):
        batch = data.batch(step)
        assert batch.tokens.shape == batch.targets.shape == (4, 11)
        inner = batch.targets[:, :-1]
        ends = inner == EOS
        assert torch.equal(batch.tokens[:, 1:] == BOS, ends)
        assert torch.equal(batch.tokens[:, 1:][~ends], inner[~ends])
        flat = batch.tokens.flatten()
        starts = batch.cu_seqlens.tolist()
        assert starts[0] == 0
        assert starts[-1] == flat.numel()
        expected = {i for i in range(44) if i % 11 == 0 or flat[i] == BOS} | {44}
        assert starts == sorted(expected)
        # a document has one letter, so no segment may hold two
        for a, b in itertools.pairwise(starts):
            assert len(set(flat[a:b].tolist()) - {BOS}) <= 1


def test_an_epoch_holds_every_byte_at_most_once():
    data = packed(sequence_length=6, rows=1)
    total = sum(map(len, DOCUMENTS)) + len(DOCUMENTS)
    assert data.rows_per_epoch == (total - 1) // 6
    for epoch in (0, 1):
        rows = range(epoch * data.rows_per_epoch, (epoch + 1) * data.rows_per_epoch)
        seen = Counter(int(t) for row in rows for t in data.batch(row).tokens.flatten())
        full = Counter(b"".join(DOCUMENTS)) + Counter({BOS: len(DOCUMENTS)})
        assert not seen - full
        assert sum((full - seen).values()) <= 6


def test_position_is_a_pure_function_of_seed_and_step():
    straight = packed()
    early = [straight.batch(step) for step in range(8)]
    fresh = packed()
    again = fresh.batch(7)
    assert torch.equal(early[7].tokens, again.tokens)
    # and going back over an epoch's end gives the first rows again
    assert torch.equal(fresh.batch(0).tokens, early[0].tokens)
    assert not torch.equal(packed(seed=4).batch(0).tokens, early[0].tokens)


def test_processes_share_the_rows_of_a_step():
    data = packed()
    whole = data.batch(2)
    halves = [data.batch(2, rank, 2) for rank in (0, 1)]
    assert torch.equal(torch.cat([half.tokens for half in halves]), whole.tokens)
    assert all(int(half.cu_seqlens[-1]) == 22 for half in halves)


def test_epochs_are_shuffled_differently():
    data = packed(rows=1)
    first = np.concatenate([data.batch(i).tokens.numpy() for i in range(data.rows_per_epoch)])
    second = np.concatenate(
        [data.batch(i).tokens.numpy() for i in range(data.rows_per_epoch, 2 * data.rows_per_epoch)]
    )
    assert not np.array_equal(first, second)


def test_a_corpus_shorter_than_a_row_is_repeated():
    batch = PackedRows([b"ab"], 11, 2, seed=0).batch(0)
    assert batch.tokens.shape == (2, 11)
    assert set(batch.tokens.flatten().tolist()) == {BOS, 97, 98}


@pytest.mark.parametrize("documents", [[], [b""], [b"", b""]])
def test_empty_corpus(documents):
    with pytest.raises(InputError, match="at least one byte"):
        PackedRows(documents, 8, 1, seed=0)


def test_stages_change_the_rows_at_their_step():
    documents = [bytes(range(200)), bytes(range(100))]
    short, long = PackedRows(documents, 7, 6, seed=3), PackedRows(documents, 23, 2, seed=4)
    rows = StagedRows([(0, short), (5, long)])
    assert torch.equal(rows.batch(4).tokens, short.batch(4).tokens)
    assert torch.equal(rows.batch(5, 1, 2).tokens, long.batch(0, 1, 2).tokens)
    assert torch.equal(rows.batch(9).targets, long.batch(4).targets)
    assert [rows.tokens(n) for n in (0, 1, 5, 6, 9)] == [0, 42, 210, 256, 394]
    assert StagedRows([(0, short)]).tokens(3) == 126


def text_with_runs():
    generator = np.random.default_rng(5)
    return [
        b"".join(
            bytes(generator.integers(97, 123, 9).astype(np.uint8)) + b" " * int(n)
            for n in generator.integers(1, 30, 120)
        )
        for _ in range(4)
    ]


def test_overruns_repeat_a_piece_and_teach_its_end():
    documents = text_with_runs()
    plain = PackedRows(documents, 599, 3, seed=2)
    data = PackedRows(documents, 599, 3, seed=2, overruns=1.0)
    periods = Counter()
    for step in range(40):
        batch, before = data.batch(step), plain.batch(step)
        for tokens, targets, text in zip(batch.tokens, batch.targets, before.tokens, strict=True):
            left_out = (targets == UNCOUNTED).nonzero().flatten()
            if not len(left_out):  # the piece would have held the start of a document
                continue
            first = int(left_out[0]) + 1
            # up to the repeats the row is the text, and behind them it goes on
            assert torch.equal(tokens[:first], text[:first])
            count = next(
                n
                for n in range(len(left_out), OVERRUN[1])
                if torch.equal(tokens[first + n :], text[first : len(text) - n])
            )
            run = tokens[first : first + count]
            # a piece of nothing but spaces is a run of period one as well
            period = TOO_LONG - len(left_out)
            assert 1 <= period < 40
            assert torch.equal(run, tokens[first - period : first + count - period])
            assert OVERRUN[0] - period < count < OVERRUN[1]
            # uncounted until the run, with the piece that was there, is too long; then its end
            assert left_out.tolist() == list(range(first - 1, first - 1 + TOO_LONG - period))
            end = tokens[first + count]
            assert end != tokens[first + count - period]
            assert set(targets[first - 1 + TOO_LONG - period : first + count].tolist()) == {
                int(end)
            }
            if period == 1:
                assert len(set(tokens[first - 4 : first].tolist())) == 1
            periods[period] += 1
    assert 20 < periods[1] < 100
    assert max(periods) > 30
    again = PackedRows(documents, 599, 3, seed=2, overruns=1.0)
    assert torch.equal(again.batch(7).tokens, data.batch(7).tokens)
    halves = torch.cat([data.batch(4, rank, 3).targets for rank in range(3)])
    assert torch.equal(halves, data.batch(4).targets)


def test_a_share_of_the_rows_has_an_overrun():
    rows = PackedRows(text_with_runs(), 599, 4, seed=2, overruns=0.25)
    hit = sum(int((rows.batch(i).targets == UNCOUNTED).any(1).sum()) for i in range(60))
    assert 30 < hit < 80
    none = PackedRows(text_with_runs(), 599, 4, seed=2)
    assert not any((none.batch(i).targets == UNCOUNTED).any() for i in range(20))


def test_overruns_need_long_rows():
    with pytest.raises(InputError, match="at least 512 tokens"):
        PackedRows(text_with_runs(), 511, 1, seed=0, overruns=0.1)


def test_read_documents(tmp_path):
    (tmp_path / "b.txt").write_bytes(b"\xff\x00")
    (tmp_path / "a.txt").write_bytes(b"x")
    assert read_documents(tmp_path, ("*.txt", "a.*")) == [b"x", b"\xff\x00"]
    assert read_documents(tmp_path, (str(tmp_path / "a.txt"),)) == [b"x"]
    assert read_documents(tmp_path, ("*.txt",), without=(str(tmp_path / "a*"),)) == [b"\xff\x00"]
    with pytest.raises(InputError, match="matches none"):
        read_documents(tmp_path, ("*.py",))


@pytest.mark.parametrize("glob", ["", "/", ".", "a\0b"])
def test_what_is_no_pattern_is_refused(tmp_path, glob):
    with pytest.raises(InputError, match="data"):
        read_documents(tmp_path, (glob,))
