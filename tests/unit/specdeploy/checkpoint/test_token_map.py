"""What every id stands for in bytes, whatever the file's spelling: compared with the libraries' own decoding."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from helpers.fabricated_checkpoints import byte_level_tokenizer
from helpers.tiny_checkpoint import CORPUS, make_tokenizer
from specdeploy.checkpoint import tokenizer as tokenizer_module
from specdeploy.checkpoint.tokenizer import TokenMap, differing_ids, has_tokenizer, load_token_map, show_piece
from specdeploy.errors import CheckpointError

TEXTS = [*CORPUS, "Les élèves ont mangé à la cantine.", "東京は大きい。", "\ttabs\nand \N{GRINNING FACE}"]


def write(folder: Path, content: dict[str, Any]) -> TokenMap:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return load_token_map(folder)


def train_sentencepiece(folder: Path, **options: Any) -> Path:
    """A SentencePiece model with byte fallback, as Llama 2 and Mistral have."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(TEXTS * 20),
        model_writer=model,
        vocab_size=420,
        byte_fallback=True,
        model_type="bpe",
        minloglevel=5,
        character_coverage=0.98,
        **options,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    return folder / "tokenizer.model"


class TestTokenizerJson:
    def test_byte_level_pieces_are_the_bytes_of_the_text(self, tmp_path: Path) -> None:
        library = make_tokenizer(400)
        library.save(str(tmp_path / "tokenizer.json"))

        tokens = load_token_map(tmp_path)

        assert tokens.length == library.get_vocab_size()
        assert tokens.special_ids == {0, 1, 2}
        assert tokens.pieces[:3] == (b"<|end|>", b"<|user|>", b"<|bot|>")
        assert {piece for piece in tokens.pieces[3:] if piece is not None and len(piece) == 1} == {
            bytes([byte]) for byte in range(256)
        }
        for text in TEXTS:
            ids = library.encode(text).ids
            assert b"".join(tokens.pieces[token_id] or b"" for token_id in ids) == text.encode()

    def test_metaspace_with_byte_fallback(self, tmp_path: Path) -> None:
        vocab = {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "<0xE6>": 3, "▁the": 4, "▁": 5, "é": 6, "<0x0G>": 7}
        library = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        library.add_special_tokens(["<s>"])
        library.save(str(tmp_path / "tokenizer.json"))

        pieces = load_token_map(tmp_path).pieces

        assert pieces == (b"<unk>", b"<s>", b"\n", b"\xe6", b" the", b" ", "é".encode(), b"<0x0G>")

    def test_unigram_is_ordered_by_its_list(self, tmp_path: Path) -> None:
        library = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁a", -1.0), ("b", -2.0)], 0, False))
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        library.save(str(tmp_path / "tokenizer.json"))

        assert load_token_map(tmp_path).pieces == (b"<unk>", b" a", b"b")

    def test_word_pieces_keep_their_prefix(self, tmp_path: Path) -> None:
        library = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "ing": 3}))
        library.save(str(tmp_path / "tokenizer.json"))

        assert load_token_map(tmp_path).pieces == (b"[UNK]", b"play", b"##ing", b"ing")

    def test_added_tokens_stand_for_themselves_and_leave_gaps(self, tmp_path: Path) -> None:
        content = byte_level_tokenizer(300)
        content["added_tokens"].append({"id": 305, "content": "é Ġ", "special": False})

        tokens = write(tmp_path, content)

        assert tokens.length == 306
        assert tokens.pieces[305] == "é Ġ".encode()
        assert tokens.pieces[301] is None
        assert 305 not in tokens.special_ids

    def test_merges_are_skipped_and_nothing_else(self, tmp_path: Path) -> None:
        plain = write(tmp_path / "a", byte_level_tokenizer(600, num_merges=0))
        content = byte_level_tokenizer(600, num_merges=0)
        content["model"]["merges"] = [['"]]', "\\"], ["merges", '": [']] * 300
        content["extra"] = {"after": 1}

        assert write(tmp_path / "b", content).pieces == plain.pieces

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            (None, "model: must be an object"),
            ({}, "model.vocab: must be an object or a list"),
            ({"vocab": {"a": "0"}}, "'a' has id 0, not a whole number"),
            ({"vocab": {"a": -1}}, "'a' has id -1"),
            ({"vocab": {"a": 1e99}}, "'a' has id 1e\\+99"),
            ({"vocab": {"a": 4_000_000}}, "below 4000000"),
            ({"vocab": {"a": 1, "b": 1}}, "id 1 stands for both 'a' and 'b'"),
            ({"vocab": [["a"]]}, "every entry must be"),
        ],
    )
    def test_unusable_vocabularies(self, tmp_path: Path, model: Any, words: str) -> None:
        with pytest.raises(CheckpointError, match=words):
            write(tmp_path, {"model": model})

    @pytest.mark.parametrize("added", [[1], [{"id": 1}], [{"content": "x"}], [{"id": 1 << 40, "content": "x"}], "x"])
    def test_unusable_added_tokens(self, tmp_path: Path, added: Any) -> None:
        with pytest.raises(CheckpointError, match="added_tokens"):
            write(tmp_path, {"model": {"vocab": {"a": 0}}, "added_tokens": added})

    def test_more_than_50_mib_are_refused_unread(self, tmp_path: Path) -> None:
        with (tmp_path / "tokenizer.json").open("wb") as file:
            file.truncate((50 << 20) + 1)

        with pytest.raises(CheckpointError, match="52428801 bytes, more than the 52428800"):
            load_token_map(tmp_path)

    def test_what_is_close_to_50_mb_but_no_tokenizer_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_bytes(b'{"model": [' + b"[]," * 16_000_000 + b"[]]}")

        with pytest.raises(CheckpointError, match="items, more than the"):
            load_token_map(tmp_path)


class TestSentencePiece:
    def test_same_bytes_as_the_library_decodes(self, tmp_path: Path) -> None:
        path = train_sentencepiece(tmp_path)
        library = sentencepiece.SentencePieceProcessor(model_file=str(path))

        tokens = load_token_map(tmp_path)

        assert tokens.length == 420
        assert tokens.pieces[library.PieceToId("<0x0A>")] == b"\n"
        assert tokens.special_ids == {library.bos_id(), library.eos_id()}
        for text in TEXTS:
            joined = b"".join(tokens.pieces[token_id] or b"" for token_id in library.encode(text))
            assert joined.decode() == " " + library.decode(library.encode(text))

    def test_same_map_as_its_tokenizer_json(self, tmp_path: Path) -> None:
        """Draft with tokenizer.model, target with the tokenizer.json that was converted from it."""
        path = train_sentencepiece(tmp_path / "draft")
        library = sentencepiece.SentencePieceProcessor(model_file=str(path))
        converted = Tokenizer(
            models.BPE({library.IdToPiece(index): index for index in range(420)}, [], byte_fallback=True)
        )
        converted.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        (tmp_path / "target").mkdir()
        converted.save(str(tmp_path / "target" / "tokenizer.json"))

        assert differing_ids(load_token_map(tmp_path / "target"), load_token_map(tmp_path / "draft")) == []

    def test_tokens_added_beside_the_model(self, tmp_path: Path) -> None:
        train_sentencepiece(tmp_path)
        (tmp_path / "added_tokens.json").write_text('{"<old>": 420}')
        decoder = {"421": {"content": "<|end|>", "special": True}, "420": {"content": "<new>"}}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))

        tokens = load_token_map(tmp_path)

        assert tokens.pieces[420:] == (b"<new>", b"<|end|>")
        assert 421 in tokens.special_ids

    @pytest.mark.parametrize("content", [b"", b"nonsense", b"\x0a\xff\xff\xff\xff\x0f"])
    def test_damaged_model(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tokenizer.model").write_bytes(content)

        with pytest.raises(CheckpointError, match=r"tokenizer\.model: not a SentencePiece model"):
            load_token_map(tmp_path)

    def test_without_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "tokenizer.model").write_bytes(b"x")
        monkeypatch.setitem(sys.modules, "sentencepiece", None)

        with pytest.raises(CheckpointError, match="pip install sentencepiece"):
            load_token_map(tmp_path)


class TestComparison:
    def test_two_swapped_tokens_of_equal_vocabularies_are_found(self, tmp_path: Path) -> None:
        target = write(tmp_path / "target", byte_level_tokenizer(1000))
        draft = write(tmp_path / "draft", byte_level_tokenizer(1000, swap=(300, 700)))

        assert differing_ids(target, target) == []
        assert differing_ids(target, draft) == [300, 700]

    def test_only_the_common_range_is_compared(self, tmp_path: Path) -> None:
        target = write(tmp_path / "target", byte_level_tokenizer(1000, added=()))
        draft = write(tmp_path / "draft", byte_level_tokenizer(900, added=()))

        assert differing_ids(target, draft) == []
        assert (target.length, draft.length) == (1000, 900)

    def test_other_spelling_of_the_same_bytes_is_no_difference(self, tmp_path: Path) -> None:
        byte_level = write(tmp_path / "a", {"model": {"vocab": {"Ġa": 0}}, "decoder": {"type": "ByteLevel"}})
        metaspace = write(tmp_path / "b", {"model": {"vocab": {"▁a": 0}}, "decoder": {"type": "Metaspace"}})

        assert differing_ids(byte_level, metaspace) == []

    def test_pieces_are_shown_as_text_where_they_are(self) -> None:
        assert show_piece("é\n".encode()) == "'é\\n'"
        assert show_piece(b"\xe6") == r"b'\xe6'"
        assert show_piece(None) is None


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    assert not has_tokenizer(tmp_path)
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor tokenizer\.model"):
        load_token_map(tmp_path)


def test_a_byte_fallback_of_the_whole_alphabet() -> None:
    table = tokenizer_module._byte_level_table()

    assert sorted(value for value in table.values() if value < 256) == list(range(256))


def test_training_libraries_agree_on_added_tokens(tmp_path: Path) -> None:
    library = make_tokenizer(330)
    library.add_tokens([AddedToken("<plain>", special=False), AddedToken("<marked>", special=True)])
    library.save(str(tmp_path / "tokenizer.json"))
    tokens = load_token_map(tmp_path)

    for text, token_id in library.get_vocab(with_added_tokens=True).items():
        if text.startswith("<"):
            assert tokens.pieces[token_id] in (text.encode(), b"<")
