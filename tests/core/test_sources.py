"""Which samples exist: image folders, file lists, objects, and what is wrong with a bad one."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from portaloader.errors import ArgumentError, EmptySourceError, PortaloaderError, SourceError, SourceNotFoundError
from portaloader.sources import Field, FileList, ImageFolder, Objects, open_source
from portaloader.sources.paths import PathTable

LISTED = [("a b.jpg", "cat"), ("c.jpg", "dog"), ("d/e.jpg", "cat")]
IMAGE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
FILE, ENCODED = Field("file", np.dtype(np.uint8), 1), Field("encoded", np.dtype(np.uint8), 1)


def array(dtype, ndim):
    return Field("array", np.dtype(dtype), ndim)


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def paths(source, root):
    """Of all samples, as bytes, relative to ``root``."""
    column = source.fetch(np.arange(len(source)), ["image"])["image"]
    assert all(path.dtype == np.uint8 for path in column)
    return [path.tobytes().removeprefix(os.fsencode(root) + b"/") for path in column]


def labels(source):
    found = source.fetch(np.arange(len(source)), ["label"])["label"]
    assert found.dtype == np.int64
    return found.tolist()


def write(folder, ending, rows, names=("path", "label")):
    """A file list of these rows."""
    separator = {"txt": " ", "csv": ",", "tsv": "\t", "jsonl": ""}[ending]
    lines = [separator.join(map(str, row)) for row in ([names] if ending in ("csv", "tsv") else []) + list(rows)]
    if ending == "jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    folder.mkdir(exist_ok=True)
    (folder / f"list.{ending}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return folder / f"list.{ending}"


@pytest.fixture(params=["txt", "csv", "tsv", "jsonl"])
def ending(request):
    return request.param


def test_folder_labels_from_directories_at_any_depth(tmp_path):
    source = ImageFolder(touch(tmp_path, "cat/1.jpg", "cat/x/y/z/2.jpg", "dog/deep/3.jpg", "ant/4.png"))
    assert paths(source, tmp_path) == [b"ant/4.png", b"cat/1.jpg", b"cat/x/y/z/2.jpg", b"dog/deep/3.jpg"]
    assert (labels(source), source.classes) == ([0, 1, 1, 2], ["ant", "cat", "dog"])
    assert source.fields == {"image": FILE, "label": array(np.int64, 0)}
    assert source.fetch(np.array([3, 0, 3]), ["label"])["label"].tolist() == [2, 0, 2]
    assert source.describe(1) == str(tmp_path / "cat/1.jpg")


@pytest.mark.parametrize("turn", [1, -1])
def test_folder_order_is_of_bytes_whatever_was_made_first(tmp_path, turn):
    names = ["B/1.jpg", "a/10.jpg", "a/9.jpg", "a/Z.jpg", "a/a.jpg", "a/sub/0.jpg", "a-b/1.jpg", "é/1.jpg"]
    source = ImageFolder(touch(tmp_path, *names[::turn]))
    assert paths(source, tmp_path) == [name.encode() for name in names]
    assert source.classes == ["B", "a", "a-b", "é"]


def test_folder_takes_image_endings_in_any_case_and_no_hidden_files(tmp_path):
    images = ["a.jpg/1.JPG", "a.jpg/2.Png", "a.jpg/3.jpeg"]
    source = ImageFolder(touch(tmp_path, *images, "b/4.txt", "b/jpg", "b/5.jpg.bak", "b/._6.jpg", ".c/7.jpg", "b/.d/8.jpg"))
    assert paths(source, tmp_path) == [name.encode() for name in images]
    assert source.classes == ["a.jpg"]


def test_folder_follows_links_and_survives_cycles_and_broken_ones(tmp_path):
    root = touch(tmp_path, "elsewhere/1.jpg", "root/a/1.jpg", "root/b/2.jpg") / "root"
    links = {"a/up": root, "a/b": root / "b", "b/a": root / "a", "c": tmp_path / "elsewhere", "b/3.jpg": root / "a/1.jpg"}
    for link, target in {**links, "a/broken.jpg": "gone.jpg", "b/self.jpg": "self.jpg"}.items():
        (root / link).symlink_to(target)
    expected = ["a/1.jpg", "a/b/2.jpg", "a/b/3.jpg", "b/2.jpg", "b/3.jpg", "b/a/1.jpg", "c/1.jpg"]
    assert paths(ImageFolder(root), root) == [name.encode() for name in expected]


def test_flat_folder_has_no_labels(tmp_path):
    source = ImageFolder(touch(tmp_path, "2.jpg", "1.jpg", "notes/readme.txt"))
    assert paths(source, tmp_path) == [b"1.jpg", b"2.jpg"]
    assert (set(source.fields), source.classes) == ({"image"}, None)


def test_folder_file_names_that_are_not_utf8(tmp_path):
    source = ImageFolder(touch(tmp_path, os.fsdecode(b"caf\xe9/\xff.jpg")))
    assert paths(source, tmp_path) == [b"caf\xe9/\xff.jpg"]
    assert os.fsencode(source.describe(0)) == os.fsencode(tmp_path) + b"/caf\xe9/\xff.jpg"
    assert os.fsencode(source.classes[0]) == b"caf\xe9"


def test_list_of_names_and_of_paths_with_spaces(tmp_path, ending):
    source = FileList(write(tmp_path, ending, LISTED))
    assert paths(source, tmp_path) == [b"a b.jpg", b"c.jpg", b"d/e.jpg"]
    assert (labels(source), source.classes) == ([0, 1, 0], ["cat", "dog"])
    assert source.describe(0) == str(tmp_path / "a b.jpg")


@pytest.mark.parametrize(
    ("written", "expected", "classes"),
    [
        ([10, 2, 10], [10, 2, 10], None),
        (["zebra", "ant", "7"], [2, 1, 0], ["7", "ant", "zebra"]),
        (["2_0", "1_0", "2_0"], [1, 0, 1], ["1_0", "2_0"]),
    ],
    ids=["numbers", "names", "names that look like numbers"],
)
def test_list_labels(tmp_path, ending, written, expected, classes):
    source = FileList(write(tmp_path, ending, [(f"{i}.jpg", label) for i, label in enumerate(written)]))
    assert (labels(source), source.classes) == (expected, classes)


def test_list_root_and_absolute_paths(tmp_path, ending):
    source = FileList(write(tmp_path, ending, [("a.jpg", 0), ("/else/b.jpg", 1)]), root=tmp_path / "images")
    assert paths(source, tmp_path) == [b"images/a.jpg", b"/else/b.jpg"]


def test_list_without_labels(tmp_path, ending):
    source = FileList(write(tmp_path, ending, [("a b.jpg",), ("c.jpg",)], names=("path",)), label=None)
    assert paths(source, tmp_path) == [b"a b.jpg", b"c.jpg"]
    assert set(source.fields) == {"image"}


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_list_with_other_names(tmp_path, ending):
    path = write(tmp_path, ending, [("a.jpg", 3)], names=("file", "class"))
    assert labels(FileList(path, image="file", label="class")) == [3]
    with pytest.raises(SourceError, match=r"'path'.*'file', 'class'.*FileList\(path, image=..., label=...\)"):
        FileList(path)
    with pytest.raises(SourceError, match="'label'.*label=None for a list without labels"):
        FileList(path, image="file")


def test_list_with_empty_lines_and_byte_order_mark(tmp_path, ending):
    path = write(tmp_path, ending, LISTED)
    path.write_text("\ufeff" + path.read_text(encoding="utf-8").replace("\n", "\n\n"), encoding="utf-8")
    assert paths(FileList(path), tmp_path) == [b"a b.jpg", b"c.jpg", b"d/e.jpg"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "path,label\na.jpg,3.5\nb.jpg,1\n", "the label 3.5; labels are whole numbers from 0, or names"),
        (
            "l.txt",
            "a.jpg 0\nb.jpg\n",
            "line 2.*no label; write 'path label', or say so: portaloader.sources.FileList.*label=None",
        ),
        ("l.csv", "path,label\na.jpg,0\nb.jpg\n", "line 3: the label is None; a whole number or a name"),
        ("l.csv", "path,label\na.jpg,\n", "line 2: the label is ''"),
        ("l.csv", "path,label\na.jpg, \n", "line 2: the label is"),
        ("l.csv", "path,label\n,1\n", "line 2: the path is empty"),
        ("l.csv", "path,label\na.jpg,-1\n", "label -1; labels are 0 or more"),
        ("l.csv", f"path,label\na.jpg,{2**63}\n", f"{2**63}"),
        ("l.csv", "path,label\na.jpg,caf\udce9\n", "UTF-8"),
        ("l.jsonl", '{"path": "a.jpg", "label": 1}\n{"path": "b.jpg"}\n', r"line 2: no key 'label' \(found: 'path'\)"),
        ("l.jsonl", '{"path": "a.jpg", "label": 1.5}\n', "line 1: the label is 1.5"),
        ("l.jsonl", '{"path": null, "label": 1}\n', "line 1: the path is"),
        ("l.jsonl", '["a.jpg", 1]\n', "line 1: no key 'path'"),
        ("l.jsonl", "a.jpg 1\n", "line 1: not JSON"),
    ],
)
def test_bad_line_of_a_list(tmp_path, name, text, message):
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SourceError, match=f"{name}.*{message}"):
        FileList(tmp_path / name)


@pytest.mark.parametrize("header", [True, False])
def test_empty_list(tmp_path, ending, header):
    path = write(tmp_path, ending, [])
    path.write_text(path.read_text(encoding="utf-8") if header else "", encoding="utf-8")
    with pytest.raises(EmptySourceError, match=r"list\..*names no file"):
        FileList(path)


class Broken(list):
    def __getitem__(self, index):
        raise OSError(f"disk on fire at {index}")


@pytest.mark.parametrize(
    ("item", "fields"),
    [
        ({"a": np.zeros((2, 3), np.float32), "n": 3}, {"a": array(np.float32, 2), "n": array(np.int64, 0)}),
        ((IMAGE, 1), {"image": array(np.uint8, 3), "label": array(np.int64, 0)}),
        (("x.jpg", np.uint8(1)), {"image": FILE, "label": array(np.int64, 0)}),
        (Path("x.jpg"), {"image": FILE}),
        (b"\xff\xd8", {"image": ENCODED}),
        (Image.fromarray(IMAGE), {"image": array(np.uint8, 3)}),
        ({"p": 0.5, "b": True}, {"p": array(np.float64, 0), "b": array(np.bool_, 0)}),
    ],
)
def test_fields_of_an_item(item, fields):
    assert Objects([item]).fields == fields


def test_values_of_items():
    items = [{"n": n, "x": np.full((2, n), n, np.float32), "bytes": bytes([n]), "file": f"{n}.jpg"} for n in range(4)]
    found = Objects(items).fetch(np.array([3, 1]), ["n", "x", "bytes", "file"])
    assert (found["n"].dtype, found["n"].tolist()) == (np.int64, [3, 1])
    assert [(x.dtype, x.tolist()) for x in found["x"]] == [(np.float32, [[3.0] * 3] * 2), (np.float32, [[1.0]] * 2)]
    assert [b.tobytes() for b in found["bytes"] + found["file"]] == [b"\x03", b"\x01", b"3.jpg", b"1.jpg"]


def test_pixels_of_items():
    items = [Image.fromarray(IMAGE), np.asfortranarray(IMAGE), IMAGE[::-1]]
    np.testing.assert_array_equal(Objects(items).fetch(np.arange(3), ["image"])["image"], [IMAGE, IMAGE, IMAGE[::-1]])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(1,)], r"tuple of 1; a pair is \(image, label\)"),
        ([{}], "empty mapping"),
        ([{"x": 1, "label": "cat"}], "field 'label' of item 0 of list is 'cat'.*name of a class"),
        ([None], "'image' is NoneType.*a path, bytes, or a numeric array is needed"),
        ([[[1, 2], [3]]], "NumPy cannot make an array"),
        (Broken([0]), "item 0 of Broken cannot be read: OSError: disk on fire at 0"),
        ([{"x": 1}, {"x": 1.5}], r"'x' of item 1 of list is an array \(float64, 0 axes\); item 0 has .*int64"),
        ([{"x": 1}, {"x": [1]}], "1 axes.*every item must be alike"),
        ([{"x": 1}, {"y": 1}], "item 1 of list has no field 'x', which item 0 has"),
        ([{"x": 1}, (1, 2, 3)], "item 1 of list is a tuple of 3.*return a dict with names"),
        ([{"x": 1}, {"x": 2**63}], "field 'x' of item 1"),
    ],
)
def test_items_that_cannot_be_used(items, message):
    with pytest.raises(SourceError, match=message):
        Objects(items).fetch(np.arange(len(items)), ["x"])


def test_open_source(tmp_path):
    touch(tmp_path, "a/1.jpg")
    meant = [tmp_path, str(tmp_path), write(tmp_path, "csv", LISTED), [IMAGE], None]
    opened = [open_source(source) for source in meant]
    assert [type(source) for source in opened] == [ImageFolder, ImageFolder, FileList, Objects, ImageFolder]
    assert all(open_source(source) is source for source in opened)


@pytest.mark.parametrize(
    ("names", "kind", "message"),
    [
        ((), EmptySourceError, "is empty"),
        (("a/readme.txt", "b.pdf"), EmptySourceError, "no image: looked at any depth for .*.jpg .*.png"),
        (("a/1.jpg", "2.jpg", "3.jpg"), SourceError, "2 images directly in it and 1 in folders.*or give a file list"),
    ],
)
def test_bad_folder(tmp_path, names, kind, message):
    with pytest.raises(PortaloaderError, match=f"{tmp_path}.*{message}") as caught:
        open_source(touch(tmp_path, *names))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        ("list.xml", ArgumentError, "ends in '.xml'; known are .csv, .jsonl, .lst, .ndjson, .tsv, .txt"),
        (7, ArgumentError, "int was given; a source is a folder, a file list .*, or an object with __len__ and __getitem__"),
        ([], EmptySourceError, "list has no items"),
    ],
)
def test_bad_source(tmp_path, monkeypatch, source, kind, message):
    monkeypatch.chdir(touch(tmp_path, "list.xml"))
    with pytest.raises(kind, match=message):
        open_source(source)


def test_missing_path():
    for kind in (open_source, ImageFolder, FileList):
        with pytest.raises(SourceNotFoundError, match="'not/there.csv' was asked for; .*no such"):
            kind("not/there.csv")


def test_fingerprint(tmp_path, ending):
    names = [("a/1.jpg", "b/2.jpg"), ("b/2.jpg", "a/1.jpg"), ("a/1.jpg", "b/3.jpg"), ("a/1.jpg", "b/2.jpg", "b/3.jpg")]
    rows = [[("a", 0), ("b", 1)], [("a", 0), ("b", 1)], [("a", 1), ("b", 0)], [("b", 1), ("a", 0)], [("a", 0)]]
    folders = [ImageFolder(touch(tmp_path / f"folder{i}", *n)) for i, n in enumerate(names)]
    lists = [FileList(write(tmp_path / f"list{i}", ending, r)) for i, r in enumerate(rows)]
    objects = [Objects(items) for items in ([1, 2, 3], [4, 5, 6], [1, 2], (1, 2, 3), [1.0, 2.0, 3.0])]
    for sources in (folders, lists, objects):
        first, same, *others = (source.fingerprint for source in sources)
        assert first == same
        assert len({first, *others}) == 1 + len(others)


def test_paths_take_their_bytes_and_8_more_each():
    table, names = PathTable(Path("/root")), [f"class {i % 7}/{i}.jpg".encode() for i in range(1000)]
    for name in names:
        table.append(name)
    assert table.nbytes == sum(map(len, names)) + 8 * len(names)
    assert [table[i] for i in (0, 500, 999)] == [b"/root/" + names[i] for i in (0, 500, 999)]
