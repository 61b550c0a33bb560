"""One file to its documents, whatever the file is."""

import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from node.data.documents import Remarks
from node.data.reading import file_documents
from node.data.text import UnreadableError
from protocol.errors import DataError

TEXT = "some text that is worth a line\n" * 20


def _read(
    path: Path, blob: bytes, column: str | None = None
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    path.write_bytes(blob)
    remarks = Remarks()
    return list(file_documents(path, path.name, remarks, column)), remarks.shown


def _zip(members: dict[str, bytes]) -> bytes:
    blob = io.BytesIO()
    with zipfile.ZipFile(blob, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return blob.getvalue()


def _tar(members: dict[str, bytes]) -> bytes:
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return blob.getvalue()


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["a.txt.gz", "without-suffix"])
def test_compressed_text_is_opened_by_its_content(
    tmp_path: Path, compress: Callable[[bytes], bytes], name: str
) -> None:
    assert _read(tmp_path / name, compress(TEXT.encode())) == ([(name, TEXT)], [])


def test_compressed_text_is_decoded_as_files_are(tmp_path: Path) -> None:
    blob = gzip.compress(TEXT.encode("utf-16"))
    assert _read(tmp_path / "a.txt.gz", blob)[0] == [("a.txt.gz", TEXT)]


def test_text_that_begins_like_bzip2_is_text(tmp_path: Path) -> None:
    text = "BZh9 is how a bzip2 file begins"
    assert _read(tmp_path / "a.txt", text.encode())[0] == [("a.txt", text)]


@pytest.mark.parametrize("pack", [_zip, _tar, lambda members: gzip.compress(_tar(members))])
def test_members_of_archives_are_documents_in_order(
    tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    blob = pack(
        {
            "b.txt": b"second",
            "a/deep.txt.gz": gzip.compress(b"first"),
            "picture.png": b"\x89PNG\0\0",
            "__MACOSX/._b.txt": b"Mac",
            "nothing.txt": b"",
            "rows.jsonl": b'{"text": "third"}\n',
        }
    )
    found, remarks = _read(tmp_path / "all.zip", blob)
    assert found == [
        ("all.zip/a/deep.txt.gz", "first"),
        ("all.zip/b.txt", "second"),
        ("all.zip/rows.jsonl/0", "third"),
    ]
    assert dict(remarks) == {
        "all.zip/__MACOSX/._b.txt": "hidden",
        "all.zip/nothing.txt": "empty",
        "all.zip/picture.png": "binary (it holds NUL bytes)",
    }


def test_an_archive_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="an archive without text"):
        _read(tmp_path / "a.zip", _zip({"a.bin": b"\0\0"}))


def test_a_member_behind_a_password_is_passed_over(tmp_path: Path) -> None:
    blob = bytearray(_zip({"a.txt": TEXT.encode(), "b.txt": TEXT.encode()}))
    for start in (b"PK\x03\x04", b"PK\x01\x02"):  # bit 0 of the flags of the first entry
        place = blob.index(start) + (6 if start[2] == 3 else 8)
        blob[place] |= 1
    found, remarks = _read(tmp_path / "a.zip", bytes(blob))
    assert [name for name, _ in found] == ["a.zip/b.txt"]
    assert "password" in dict(remarks)["a.zip/a.txt"]


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_torn_compressed_file_is_damaged_and_gives_nothing(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(UnreadableError, match="damaged"):
        _read(tmp_path / "a.txt.gz", compress(TEXT.encode())[:-12])


def test_a_torn_archive_is_damaged(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="damaged zip"):
        _read(tmp_path / "a.zip", _zip({"a.txt": TEXT.encode()})[:-30])


def test_what_opens_beyond_the_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.data.archives.OPENED_BYTES_MAX", 1000)
    with pytest.raises(UnreadableError, match="more than 1,000 bytes"):
        _read(tmp_path / "bomb.gz", gzip.compress(bytes(10_000)))


def test_archives_in_archives_end_somewhere(tmp_path: Path) -> None:
    blob = gzip.compress(TEXT.encode())
    for _ in range(3):
        blob = gzip.compress(blob)
    assert _read(tmp_path / "a.gz", blob)[0] == [("a.gz", TEXT)]
    with pytest.raises(UnreadableError, match="in more than 4"):
        _read(tmp_path / "a.gz", gzip.compress(blob))


@pytest.mark.parametrize(
    ("name", "blob", "reason"),
    [
        ("a.7z", b"7z\xbc\xaf\x27\x1c and more", "7z archive"),
        ("a.rar", b"Rar!\x1a\x07\x01\0", "RAR archive"),
        ("a.lz4", b"\x04\x22\x4d\x18 and more", "lz4"),
        ("a.pdf", b"%PDF-1.7 and more", "a PDF; convert it to text"),
        ("a.docx", b"PK\x03\x04 and more", r"a \.docx file, which is a zip of markup"),
        ("a.arrow", b"ARROW1\0\0", "Arrow file"),
        ("a.txt", b"", "empty"),
    ],
)
def test_what_is_not_opened_is_refused_by_name(
    tmp_path: Path, name: str, blob: bytes, reason: str
) -> None:
    with pytest.raises(UnreadableError, match=reason):
        _read(tmp_path / name, blob)


def test_zstd_without_its_package_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UnreadableError, match=r"pip install zstandard, or decompress.*zstd -d"):
        _read(tmp_path / "a.zst", b"\x28\xb5\x2f\xfd and more")


def test_real_zstd_is_opened_where_its_package_is_installed(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    blob = zstandard.compress(TEXT.encode())
    assert _read(tmp_path / "a.txt.zst", blob + blob)[0] == [("a.txt.zst", TEXT + TEXT)]
    with pytest.raises(UnreadableError, match="damaged"):
        _read(tmp_path / "a.txt.zst", blob[:12] + bytes(9))


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.ndjson", "rows.jsonl.gz"])
def test_rows_of_json_lines_are_documents(tmp_path: Path, name: str) -> None:
    lines = ['{"text": "one\\n", "id": 1}', "", '"two"', "{broken", '{"id": 4}', '{"text": null}']
    blob = "\n".join(lines).encode()
    found, remarks = _read(tmp_path / name, gzip.compress(blob) if name.endswith("gz") else blob)
    assert found == [(f"{name}/0", "one\n"), (f"{name}/2", "two")]
    assert [place for place, _ in remarks] == [f"{name}/{row}" for row in (3, 4, 5)]


def test_rows_without_text_are_counted_by_their_reason(tmp_path: Path) -> None:
    lines = ['{"text": null}', '{"text": "one"}', '{"text": " "}', '{"text": 3}', '{"text": null}']
    found, remarks = _read(tmp_path / "rows.jsonl", "\n".join(lines).encode())
    assert found == [("rows.jsonl/1", "one")]
    assert remarks == [
        ("rows.jsonl/0", "nothing in the column 'text' (3 rows)"),
        ("rows.jsonl/3", "no text in the column 'text': int"),
    ]


def test_rows_without_text_ask_for_the_column(tmp_path: Path) -> None:
    blob = b'{"story": "one", "id": 1}\n'
    with pytest.raises(UnreadableError, match=r"columns are id, story; name one: rows:FILE:COLUMN"):
        _read(tmp_path / "rows.jsonl", blob)
    assert _read(tmp_path / "rows.jsonl", blob, "story")[0] == [("rows.jsonl/0", "one")]


@pytest.mark.parametrize(
    "rows",
    [
        '[{"text": "one"}, {"text": "two"}]',
        '\n[\n {"text": "one"}, {"text": "two"}, 3]',
        '{"text": "one"}\n{"text": "two"}\n',
    ],
)
def test_objects_in_a_json_file_are_rows(tmp_path: Path, rows: str) -> None:
    found = _read(tmp_path / "a.json", rows.encode())[0]
    assert found == [("a.json/0", "one"), ("a.json/1", "two")]


@pytest.mark.parametrize("text", ['{"text": "one"}', '{\n"text": 1\n}', "[1, 2]", "[]", "[broken"])
def test_other_json_is_text_unless_rows_are_asked_for(tmp_path: Path, text: str) -> None:
    assert _read(tmp_path / "a.json", text.encode())[0] == [("a.json", text)]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", '[{"a": 1}]', "its columns are a; name one: rows:FILE:COLUMN"),
        ("a.json", '[{"text": "one"}, {"te', "a damaged JSON array: "),
        ("a.csv", "id,story\n1,one\n", "its columns are id, story; name one"),
        ("a.csv", "text\n\n", "rows, but none with text"),
    ],
)
def test_rows_are_not_trained_on_as_syntax(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    with pytest.raises(UnreadableError, match=reason):
        _read(tmp_path / name, text.encode())


def test_where_rows_are_asked_for_a_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match="a file without rows, which are JSON Lines, a JSON"):
        _read(tmp_path / "a.txt", TEXT.encode(), "text")
    assert _read(tmp_path / "a.txt", b'{"story": "one"}\n', "story")[0] == [("a.txt/0", "one")]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("a.csv", 'id,text\r\n1,"one, ""1""\r\nand more"\r\n\r\n2,two\r\n3\r\n4,\r\n'),
        ("a.csv", '\ufeffid; text\n1;"one, ""1""\r\nand more"\n2;two\n3\n4;'),
        ("a.tsv", 'id\ttext\n1\t"one, ""1""\r\nand more"\n2\ttwo\n3\n4\t\n'),
    ],
)
def test_rows_of_a_table_are_documents(tmp_path: Path, name: str, table: str) -> None:
    found, remarks = _read(tmp_path / name, table.encode())
    assert found == [(f"{name}/0", 'one, "1"\r\nand more'), (f"{name}/1", "two")]
    assert remarks == [
        (f"{name}/2", "another number of fields than the header has"),
        (f"{name}/3", "nothing in the column 'text'"),
    ]


def test_a_field_of_a_table_may_be_long_and_a_row_without_an_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "x" * 200_000  # Python's own bound is 131,072
    assert _read(tmp_path / "a.csv", f"text\n{long}\n".encode())[0] == [("a.csv/0", long)]
    monkeypatch.setattr("node.data.rows.ROW_CHARACTERS_MAX", 1000)
    fine = "text\n" + "a line\n" * 500
    assert len(_read(tmp_path / "a.csv", fine.encode())[0]) == 500
    for endless in ("a line\n" * 200, "," * 1001):
        with pytest.raises(UnreadableError, match="more than 1,000 characters; perhaps a quote"):
            _read(tmp_path / "a.csv", f'text\nfine\n"{endless}'.encode())


@pytest.mark.parametrize(("speaker", "words"), [("role", "content"), ("from", "value")])
def test_a_chat_is_a_paragraph_for_each_message(tmp_path: Path, speaker: str, words: str) -> None:
    chat = [{speaker: "user", words: "Hello?"}, {speaker: "assistant", words: "Hi.\nI am here."}]
    rows = [{"messages": chat}, {"messages": []}, {"messages": [{"role": "user"}]}]
    blob = "\n".join(map(json.dumps, [*rows, *rows[:1]])).encode()
    found, remarks = _read(tmp_path / "a.jsonl", blob, "messages")
    text = "user: Hello?\n\nassistant: Hi.\nI am here."
    assert found == [("a.jsonl/0", text), ("a.jsonl/3", text)]
    assert remarks[:2] == [
        ("a.jsonl/0", 'a chat, read as paragraphs "role: content" (2 rows)'),
        ("a.jsonl/1", "nothing in the column 'messages'"),
    ]
    assert "a list that is no chat" in remarks[2][1]
    with pytest.raises(UnreadableError, match="its columns are messages; name one: rows:FILE:COL"):
        _read(tmp_path / "a.jsonl", blob)


def _parquet(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    """Stands in for pyarrow, which the node's packages do not need."""

    class ParquetFile:
        def __init__(self, file: io.BufferedIOBase) -> None:
            assert file.read(4) == b"PAR1"
            self.schema_arrow = SimpleNamespace(names=sorted(rows[0]))

        def iter_batches(self, columns: list[str]) -> Any:
            for row in rows:
                batch = [{column: row[column] for column in columns}]
                yield SimpleNamespace(to_pylist=lambda batch=batch: batch)

    package, module = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    module.ParquetFile = ParquetFile  # type: ignore[attr-defined]
    package.ArrowException = ValueError  # type: ignore[attr-defined]
    package.parquet = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", package)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)


def test_rows_of_parquet_are_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _parquet(monkeypatch, [{"text": "one", "id": 1}, {"text": None, "id": 2}])
    found, remarks = _read(tmp_path / "a.parquet", b"PAR1 and more")
    assert found == [("a.parquet/0", "one")]
    assert [place for place, _ in remarks] == ["a.parquet/1"]
    with pytest.raises(UnreadableError, match=r"no text in a column 'story'.*are id, text"):
        _read(tmp_path / "a.parquet", b"PAR1 and more", "story")


def test_parquet_without_its_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnreadableError, match=r"pip install datasets"):
        _read(tmp_path / "a.parquet", b"PAR1 and more")


def test_real_parquet_is_read_where_pyarrow_is_installed(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "real.parquet"
    parquet.write_table(pyarrow.table({"text": ["one", None, "three"]}), path)
    assert [text for _, text in file_documents(path, "real", Remarks())] == ["one", "three"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnreadableError, match="damaged Parquet"):
        list(file_documents(path, "real", Remarks()))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*missing\.txt: No such file"):
        list(file_documents(tmp_path / "missing.txt", "missing", Remarks()))
