"""The front door: what it refuses, and with which words."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import portaloader
from portaloader import registry
from portaloader.errors import (
    AmbiguousFrameworkError,
    ArgumentError,
    DeviceError,
    DtypeError,
    EmptySourceError,
    FrameworkBrokenError,
    FrameworkNotInstalledError,
    FrameworkTooOldError,
    LoaderError,
    PipelineError,
    SourceNotFoundError,
    StateError,
    UnknownFrameworkError,
)
from portaloader.testing.helpers import Numbers, passed_through


def made(source=None, pipeline=passed_through, **options):
    options = {"framework": "numpy", "device": "cpu", **options}
    return portaloader.get_loader(Numbers(6) if source is None else source, pipeline, **options)


def load(*arguments, **options):
    with made(*arguments, **options) as loader:
        return list(loader)


def test_bundled_samples_need_nothing():
    with portaloader.get_loader(framework="numpy") as loader:
        batch = next(iter(loader))
        assert batch["image"].shape == (32, 3, 224, 224)
        assert loader.source.classes == ["checks", "dots", "rings", "stripes", "triangles"]
        assert len(loader) == 13


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size=0.*at least 1"),
        ({"batch_size": -3}, "batch_size=-3.*at least 1"),
        ({"batch_size": "8"}, "batch_size='8'.*whole number"),
        ({"batch_size": True}, "batch_size=True.*whole number"),
        ({"shard": (3, 2)}, r"shard=\(3, 2\).*0 <= index < count"),
        ({"shard": 1}, r"shard=1.*\(index, count\)"),
        ({"shard": "all"}, "shard='all'"),
        ({"last_batch": "fill"}, "last_batch='fill'.*'partial', 'drop', 'pad', 'wrap'"),
        ({"device": "tpu"}, "device='tpu'.*cpu"),
        ({"device": -1}, "device=-1"),
        ({"epoch": -1}, "epoch=-1.*from 0"),
        ({"epoch": 10**20}, "epoch=10+ .*from 0 to 4294967295"),
        ({"batch_size": 10**12}, "batch_size=10+ .*at most 2147483647"),
        ({"shuffle": "yes"}, "shuffle='yes'.*True or False"),
        ({"batchsize": 3}, "takes: none. Was batch_size meant"),
        ({"prefetch": 0}, "prefetch=0.*from 1"),
        ({"num_threads": 0}, "num_threads=0.*from 1"),
        ({"seed": "x"}, "seed='x'"),
        ({"pipeline": lambda sample: {}}, "portaloader.pipeline"),
        ({"quality": 3}, r"passed_through\(\).*quality.*takes: none"),
    ],
)
def test_bad_argument(options, words):
    with pytest.raises(ArgumentError, match=words):
        load(**options)


def test_bad_source(tmp_path):
    with pytest.raises(SourceNotFoundError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(EmptySourceError, match="is empty"):
        load(tmp_path)
    with pytest.raises(EmptySourceError, match="no items"):
        load([])
    with pytest.raises(ArgumentError, match="source of type int"):
        load(7)
    with pytest.raises(ArgumentError, match="empty path"):
        load("")


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((4, 4, 3), np.float32), r"float32 of shape \(4, 4, 3\)"),
        (np.zeros((3, 4, 4), np.uint8), r"uint8 of shape \(3, 4, 4\)"),
        (np.zeros((4, 4), np.uint8), r"uint8 of shape \(4, 4\)"),
        (7, r"int64 of shape \(\)"),
    ],
)
def test_pixels_that_the_recipe_cannot_take(image, words):
    with pytest.raises(PipelineError, match=f"'image' is {words}.*height, width, 3"):
        load([(image, 1)], pipeline=None)


def test_pillow_images_become_rgb_as_files_do():
    picture = Image.fromarray(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    for mode in ("RGB", "L", "P", "CMYK", "RGBA", "YCbCr"):
        changed = picture.convert(mode)
        with made([changed], pipeline=None, train=False, size=4, resize=4, dtype="uint8", layout="HWC") as loader:
            np.testing.assert_array_equal(next(iter(loader))["image"][0], np.asarray(changed.convert("RGB")))


def test_a_loader_stays_in_its_process():
    with made(Numbers(4)) as loader:
        for copier in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(LoaderError, match="state_dict"):
                copier(loader)
    code = (
        "import os, portaloader\n"
        "from portaloader.testing.helpers import Numbers, passed_through\n"
        "loader = portaloader.get_loader(Numbers(4), passed_through, framework='numpy')\n"
        "child = os.fork()\n"
        "if child:\n"
        "    status = os.waitpid(child, 0)[1]\n"
        "    print(len(list(loader)), 'batch', os.waitstatus_to_exitcode(status))\n"
        "else:\n"
        "    try: list(loader)\n"
        "    except portaloader.errors.LoaderError as error: os._exit('make one in each process' in str(error))\n"
        "    os._exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1 batch 1\n"


def test_forks_end_by_themselves():
    # DALI itself would wait there, when the pipeline is destroyed or the process ends, for threads that stayed behind.
    code = (
        "import os, sys, portaloader\n"
        "from portaloader.testing.base import numbered\n"
        "own = portaloader.get_loader(pipeline=numbered(), framework='numpy', device='cpu')\n"
        "loader = portaloader.get_loader(framework='numpy', device='cpu', size=16)\n"
        "print(next(iter(own))['label'].shape, next(iter(loader))['label'].shape, flush=True)\n"
        "if not (child := os.fork()):\n"
        "    loader.close()\n"
        "    del loader\n"
        "    print(len(list(portaloader.get_loader(framework='numpy', device='cpu', size=16))))\n"
        "    sys.exit(5)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "(4,) (32,)\n13\n5\n", done.stderr


def test_closed_or_dropped_loaders_give_their_threads_back_at_once():
    code = (
        "import gc, os, portaloader\n"
        "from portaloader.testing.base import numbered\n"
        "gc.disable()\n"
        "def threads(pipeline, how):\n"
        "    loader = portaloader.get_loader(pipeline=pipeline, framework='numpy', device='cpu')\n"
        "    for batch in loader: break\n"
        "    running = len(os.listdir('/proc/self/task'))\n"
        "    if how == 'close': loader.close()\n"
        "    else: del loader\n"
        "    return running - len(os.listdir('/proc/self/task'))\n"
        "for pipeline in (None, numbered()): print([threads(pipeline, how) > 1 for how in ('close', 'drop')])\n"
        "after = len(os.listdir('/proc/self/task'))\n"
        "threads(None, 'drop')\n"
        "print(len(os.listdir('/proc/self/task')) - after)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[True, True]\n[True, True]\n0\n"


def test_threads_share_an_epoch():
    with made(Numbers(200), batch_size=2) as loader:
        batches = iter(loader)
        with ThreadPoolExecutor(4) as pool:
            parts = [pool.submit(lambda: [i for batch in batches for i in batch["id"].tolist()]) for _ in range(4)]
        assert sorted(i for part in parts for i in part.result()) == list(range(200))


def test_no_recipe_fits():
    with pytest.raises(ArgumentError, match="no recipe fits.*'value'"):
        load(pipeline=None)


def test_gpu_that_is_not_there():
    with pytest.raises(DeviceError, match=r"gpu:63.*device=\"cpu\""):
        load(device=63)


class TestPipelines:
    """What a pipeline function may return."""

    def refused(self, function, words, **options):
        with pytest.raises(PipelineError, match=words):
            load(pipeline=portaloader.pipeline(**options)(function) if options else portaloader.pipeline(function))

    def test_nothing(self):
        self.refused(lambda sample: None, "returned nothing")
        self.refused(lambda sample: {}, "returned nothing")
        self.refused(lambda sample: None, "returned nothing", outputs=["a"])

    def test_no_names(self):
        self.refused(lambda sample: sample["value"], "DataNode without names")

    def test_duplicate_names(self):
        self.refused(lambda sample: (sample["value"],) * 2, "two outputs named 'a'", outputs=["a", "a"])

    def test_too_few_outputs(self):
        self.refused(lambda sample: sample["value"], "1 outputs for the 2 names", outputs=["a", "b"])

    def test_not_a_node(self):
        self.refused(lambda sample: {"a": 3}, "returned a int for the output 'a'")

    def test_not_a_name(self):
        self.refused(lambda sample: {1: sample["value"]}, "named 1, which is not a str")

    def test_reserved_name(self):
        self.refused(lambda sample: {"id": sample["value"]}, "'id', which the loader adds itself")

    def test_unknown_field(self):
        self.refused(lambda sample: {"a": sample["image"]}, "sample.'image'.*fields 'value'")

    def test_no_parameter(self):
        with pytest.raises(PipelineError, match="takes no argument"):
            portaloader.pipeline(lambda: None)

    def test_names_of_the_decorator(self):
        @portaloader.pipeline(outputs=["number"])
        def named(sample):
            return sample["value"]

        assert [batch["number"].tolist() for batch in load(pipeline=named, shuffle=False, batch_size=3)] == [
            [0, 1, 2],
            [3, 4, 5],
        ]

    def test_one_within_another(self):
        @portaloader.pipeline
        def outer(sample, factor):
            return {"product": passed_through(sample)["value"] * factor}

        (batch,) = load(pipeline=outer, shuffle=False, factor=3)
        assert batch["product"].tolist() == [0, 3, 6, 9, 12, 15]


class TestFrameworks:
    """Which framework is meant, and what if it is not there."""

    @pytest.fixture
    def known(self, monkeypatch):
        """Only these frameworks, and none of them imported by this process."""

        def set_known(**entries):
            for name, entry in entries.items():
                monkeypatch.delitem(__import__("sys").modules, entry.module, raising=False)
                entries[name] = entry
            monkeypatch.setattr(registry, "frameworks", lambda: entries)

        return set_known

    def test_unknown(self):
        with pytest.raises(UnknownFrameworkError, match="framework='caffe'.*'jax', 'mxnet', 'numpy'"):
            load(framework="caffe")

    def test_aliases(self):
        names = {
            "tf": "tensorflow",
            "pytorch": "torch",
            "mx": "mxnet",
            "paddlepaddle": "paddle",
            "np": "numpy",
            "TF": "tensorflow",
        }
        assert {alias: registry.resolve(alias).name for alias in names} == names

    def test_not_installed(self, known):
        known(absent=registry.Framework("absent", "absent_adapter:A", "absent_framework", "pip install absent"))
        with pytest.raises(FrameworkNotInstalledError, match="absent_framework is not installed here: pip install absent"):
            load(framework="absent")

    def test_too_old(self, known):
        known(numpy=registry.Framework("numpy", "x:Y", "numpy", "pip install numpy", ("numpy",), (99,)))
        with pytest.raises(FrameworkTooOldError, match="99 or newer is needed: pip install numpy -U"):
            load(framework="numpy")

    def test_fails_at_its_import(self, known, tmp_path, monkeypatch):
        (tmp_path / "broken_adapter.py").write_text("import no_such_module")
        monkeypatch.syspath_prepend(tmp_path)
        known(broken=registry.Framework("broken", "broken_adapter:A", "broken_adapter", "pip install broken"))
        with pytest.raises(FrameworkBrokenError, match="no_such_module.*portaloader doctor --framework broken") as caught:
            load(framework="broken")
        assert isinstance(caught.value.__cause__, ImportError)

    def test_none_imported_and_none_named(self, known):
        known(one=registry.Framework("one", "a:B", "framework_one", ""))
        with pytest.raises(AmbiguousFrameworkError, match='has imported none.*framework="one"'):
            load(framework=None)

    def test_two_imported_and_none_named(self, known, monkeypatch):
        known(
            one=registry.Framework("one", "a:B", "framework_one", ""),
            two=registry.Framework("two", "a:B", "framework_two", ""),
        )
        for name in ("framework_one", "framework_two"):
            monkeypatch.setitem(__import__("sys").modules, name, ModuleType(name))
        with pytest.raises(AmbiguousFrameworkError, match="has imported one and two"):
            load(framework=None)
        monkeypatch.delitem(__import__("sys").modules, "framework_two")
        assert registry.resolve(None).name == "one"


class TestState:
    """What a state is good for, and what it is not."""

    def test_names_what_differs(self):
        with portaloader.get_loader(Numbers(6), passed_through, framework="numpy", seed=1) as one:
            state = one.state_dict()
        with portaloader.get_loader(Numbers(7), passed_through, framework="numpy", seed=2) as other:
            with pytest.raises(StateError, match="size: 6 in the state, 7 here; seed: 1 in the state, 2 here"):
                other.load_state_dict(state)
            with pytest.raises(StateError, match="version None"):
                other.load_state_dict({})
            with pytest.raises(StateError, match="this is None"):
                other.load_state_dict(None)

    @pytest.mark.parametrize("place", ["epoch", "position"])
    @pytest.mark.parametrize("value", [-1, "4", True, 4.0, None, 2**70])
    def test_was_altered(self, place, value):
        with made(Numbers(6)) as loader:
            with pytest.raises(StateError, match=f"{place} is {value!r}"):
                loader.load_state_dict({**loader.state_dict(), place: value})
            assert len(list(loader)) == 1

    def test_dalis_random_operators_cannot_be_resumed(self):
        from nvidia.dali import fn

        @portaloader.pipeline
        def noisy(sample):
            return {"noise": fn.random.uniform(), "value": sample["value"]}

        with (
            portaloader.get_loader(Numbers(6), noisy, framework="numpy") as loader,
            pytest.raises(StateError, match=r"random__Uniform.*portaloader\.random"),
        ):
            loader.state_dict()

    @pytest.mark.parametrize("rule", ["partial", "drop", "pad", "wrap"])
    def test_resumes_with_other_ranks_and_batch_size(self, rule):
        def stream(loader):
            return [i for b in loader for i in b["id"][b.get("valid", np.ones(len(b["id"]), bool))].tolist()]

        options = {"framework": "numpy", "last_batch": rule}
        with portaloader.get_loader(Numbers(40), passed_through, batch_size=6, **options) as before:
            batches = iter(before)
            seen = [next(batches)["id"].tolist() for _ in range(2)]
            state = before.state_dict()
            assert (state["epoch"], state["position"]) == (0, 12)
        rest = []
        for rank in range(2):
            with portaloader.get_loader(Numbers(40), passed_through, batch_size=4, shard=(rank, 2), **options) as after:
                after.load_state_dict(state)
                rest += stream(after)
        whole = [*seen[0], *seen[1], *rest]
        missing = {"drop": 4}.get(rule, 0)
        extra = {"wrap": 4}.get(rule, 0)
        assert len(set(whole)) == 40 - missing
        assert len(whole) == 40 - missing + extra


@pytest.mark.parametrize(("rule", "lengths"), [("partial", [4, 4]), ("drop", [3, 3]), ("pad", [4, 4]), ("wrap", [4, 4])])
def test_length_of_an_epoch_that_is_resumed_is_the_whole_one(rule, lengths):
    options = {"framework": "numpy", "last_batch": rule, "batch_size": 8}
    with (
        portaloader.get_loader(Numbers(30), passed_through, **options) as before,
        portaloader.get_loader(Numbers(30), passed_through, **options) as after,
    ):
        batches = iter(before)
        next(batches), next(batches)
        assert len(before) == lengths[0]
        after.load_state_dict(before.state_dict())
        assert len(after) == lengths[0]
        assert len(list(after)) == lengths[0] - 2
        assert len(after) == len(list(after)) == lengths[1]


def test_narrow_framework_is_told_about(monkeypatch):
    with portaloader.get_loader(Numbers(2), passed_through, framework="numpy") as loader:
        monkeypatch.setattr(loader.adapter, "unsupported", {np.dtype(np.int64): "no such thing"})
        with pytest.raises(DtypeError, match="output 'id' is int64, and numpy cannot take it: no such thing"):
            next(iter(loader))
