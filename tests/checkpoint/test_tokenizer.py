"""The tokenizer, and text that grows token by token without ever breaking a character."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from appliance.checkpoint import CheckpointError
from appliance.checkpoint.tokenizer import REPLACEMENT, IncrementalDetokenizer, Tokenizer
from tests.tiny import write_checkpoint

WORDS = ["▁the", "▁a", "a", "b", "▁", "▁▁", "é", "你", "好", "ing", "\n", "▁<0x41>", "�"]
SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level() -> Tokenizer:
    """As Llama 3 and Qwen: a token is bytes, several or half a character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = ["Ġt", "he", "ä½", "½ł", "ðŁ", "ĺĢ"]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *pairs])}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<tool>", special=False)])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": {"content": "</s>"}})


def byte_fallback() -> Tokenizer:
    """As Llama 1, 2 and Mistral: words with ▁ for a space, and single bytes for what has no token."""
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    backend = Backend(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend, {})


def metaspace() -> Tokenizer:
    """As T5 and newer SentencePiece conversions."""
    backend = Backend(models.WordLevel(vocab={t: i for i, t in enumerate([*SPECIAL, *WORDS])}, unk_token="<unk>"))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(SPECIAL)
    return Tokenizer(backend, {})


TOKENIZERS = {"byte-level": byte_level(), "byte-fallback": byte_fallback(), "metaspace": metaspace()}
EACH = pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)


def pieces_of(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push([token]) for token in ids), detokenizer.finish()]


@EACH
@settings(max_examples=300, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_pieces_put_together_are_the_whole_text(tokenizer: Tokenizer, data: st.DataObject, skip: bool) -> None:
    """For any tokens at all, broken bytes, special tokens and ids that do not exist included."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=24))
    assert "".join(pieces_of(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@EACH
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whole_characters_are_never_broken(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Where the library's text of all tokens has no broken character, no piece has one, and the texts are equal."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=16))
    whole = tokenizer._backend.decode(ids, skip_special_tokens=True)
    pieces = pieces_of(tokenizer, ids)
    if REPLACEMENT not in whole:
        assert "".join(pieces) == whole
        assert not any(REPLACEMENT in piece for piece in pieces)


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback"])
@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(codec="utf-8"), max_size=30))
def test_text_in_bytes_comes_back_character_by_character(name: str, text: str) -> None:
    """Any text, one byte a token: what is given out is at each moment a beginning of it, and a character is there
    with its last byte."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text) if name == "byte-level" else [3 + byte for byte in text.encode()]
    expected = tokenizer.decode(ids)
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = ""
    for token in ids:
        shown += detokenizer.push([token])
        assert expected.startswith(shown)
    if REPLACEMENT not in text:
        assert shown == expected
    assert shown + detokenizer.finish() == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(3, 258), min_size=20, max_size=60))
def test_broken_bytes_do_not_pile_up(ids: list[int]) -> None:
    """A model that writes bytes that are no text is not held back for ever: what is final is given out."""
    detokenizer = IncrementalDetokenizer(TOKENIZERS["byte-level"])
    for token in ids:
        detokenizer.push([token])
        assert len(detokenizer._held) <= 9


def test_the_prompt_keeps_the_space_of_a_completion() -> None:
    """`Once upon a` + `▁the` is " the"; without what stands before, the first token loses its space."""
    tokenizer = TOKENIZERS["byte-fallback"]
    the, a = tokenizer.token_to_id("▁the"), tokenizer.token_to_id("▁a")
    assert the is not None
    assert a is not None
    assert IncrementalDetokenizer(tokenizer).push([the]) == "the"
    assert IncrementalDetokenizer(tokenizer, prompt_token_ids=[1, a]).push([the]) == " the"


def test_special_tokens_are_text_only_if_asked_for() -> None:
    """`</s>` is not shown; an added token that is not special is."""
    tokenizer = TOKENIZERS["byte-level"]
    tool = tokenizer.token_to_id("<tool>")
    assert tool is not None
    assert "".join(pieces_of(tokenizer, [2, tool])) == "<tool>"
    assert "".join(pieces_of(tokenizer, [2, tool], skip=False)) == "</s><tool>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert tokenizer.special_ids == {0, 1, 2}


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    """A tokenizer.json saved while training may cut every prompt at 512 tokens; that must not happen here."""
    folder = write_checkpoint(tmp_path / "m")
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=9)
    backend.save(str(folder / "tokenizer.json"))
    assert len(Tokenizer.load(folder).encode("a" * 30)) == 30


def test_half_a_surrogate_pair_is_a_value_error(tmp_path: Path) -> None:
    """Not a crash of the library."""
    with pytest.raises(ValueError, match="surrogates"):
        TOKENIZERS["byte-level"].encode("a\ud800")


def _truncate(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:300])


def _wrong_model(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {"type": "Quantum"}}))


def _remove(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _sentencepiece(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def _bad_settings(folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "id"),
    [
        (_truncate, "tokenizer-unreadable"),
        (_wrong_model, "tokenizer-invalid"),
        (_remove, "tokenizer-missing"),
        (_sentencepiece, "tokenizer-missing"),
        (_bad_settings, "tokenizer-config-unreadable"),
    ],
)
def test_a_damaged_tokenizer_is_a_checkpoint_error(tmp_path: Path, damage: object, id: str) -> None:
    """It names the file and what to do."""
    folder = write_checkpoint(tmp_path / "m")
    damage(folder)  # type: ignore[operator]
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(folder)
    assert caught.value.id == id
    assert caught.value.file is not None
    assert caught.value.fix.text


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_corruption_is_a_checkpoint_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Bytes of tokenizer.json changed at random: it still loads, or a CheckpointError says why not."""
    folder = tmp_path_factory.getbasetemp() / "corrupt-tokenizer"
    if not folder.exists():
        write_checkpoint(folder)
        (folder / "tokenizer.json").rename(folder / "original")
    raw = bytearray((folder / "original").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(32, 126))
    (folder / "tokenizer.json").write_bytes(raw)
    try:
        Tokenizer.load(folder)
    except CheckpointError as error:
        assert str(error)  # noqa: PT017
