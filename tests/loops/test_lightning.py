"""PyTorch Lightning's Trainer, given the loader itself and its native data set in a DataLoader."""

import lightning
import pytest
import torch
from readme import run
from torch import nn
from torch.utils.data import DataLoader

import portaloader
from portaloader.testing.helpers import sample_files

pytestmark = [
    # Advice that does not fit: DALI has threads of its own, works ahead, and is not to be forked.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Your `IterableDataset` has `__len__` defined"),
    pytest.mark.filterwarnings("ignore:.*but have no `val_dataloader`"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec."),
]


class Classifier(lightning.LightningModule):
    """The mean colour, and what it was given."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(3, 7)
        self.trained, self.validated, self.sane = [[]], [[]], []

    def loss(self, batch):
        return nn.functional.cross_entropy(self.head(batch["image"].mean((2, 3))), batch["label"])

    def training_step(self, batch, number):
        self.trained[-1].append(batch["id"].tolist())
        return self.loss(batch)

    def on_train_epoch_end(self):
        self.trained.append([])

    def validation_step(self, batch, number):
        seen = self.sane if self.trainer.sanity_checking else self.validated[-1]
        seen.append(batch["id"].tolist())
        self.log("loss", self.loss(batch))

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.validated.append([])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader(count=30, **options):
    options = {"framework": "torch", "device": "cpu", "size": 16, "batch_size": 8, **options}
    return portaloader.get_loader(sample_files(count), **options)


def in_dataloader(made):
    return DataLoader(made.native(), batch_size=None)


def trainer(**options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", **{"enable_checkpointing": False, **quiet, **options})


def epochs(made, number):
    with made:
        return [[batch["id"].tolist() for batch in made] for _ in range(number)]


@pytest.mark.parametrize("given", [lambda made: made, in_dataloader], ids=["loader", "native"])
def test_sanity_check_and_epochs(given):
    model = Classifier()
    with loader() as train, loader(20, shuffle=False) as check:
        trainer(max_epochs=3).fit(model, given(train), given(check))
    assert model.trained[:-1] == epochs(loader(), 3)
    assert model.sane == epochs(loader(20, shuffle=False), 1)[0][:2]
    assert model.validated[:-1] == epochs(loader(20, shuffle=False), 3)


def test_early_stopping():
    model = Classifier()
    stop = lightning.pytorch.callbacks.EarlyStopping("loss", patience=1, min_delta=1e9)
    with loader() as train, loader(20, shuffle=False) as check:
        trainer(max_epochs=10, callbacks=[stop]).fit(model, train, check)
    assert model.trained[:-1] == epochs(loader(), 2)


def test_some_batches_of_each_epoch():
    model = Classifier()
    with loader() as train:
        trainer(max_epochs=2, limit_train_batches=2).fit(model, train)
    assert model.trained[:-1] == [epoch[:2] for epoch in epochs(loader(), 2)]


def test_steps_over_several_epochs():
    model = Classifier()
    with loader() as train:
        trainer(max_steps=6).fit(model, train)
    first, second = epochs(loader(), 2)
    assert [batch for epoch in model.trained for batch in epoch] == first + second[:2]


def test_validation_within_the_epoch():
    model = Classifier()
    with loader() as train, loader(20, shuffle=False) as check:
        trainer(max_epochs=1, val_check_interval=2).fit(model, train, check)
    assert model.validated[:-1] == epochs(loader(20, shuffle=False), 2)
    assert model.trained[:-1] == epochs(loader(), 1)


def test_a_run_that_is_resumed_in_the_middle_of_an_epoch(tmp_path):
    # The Trainer keeps the state of what has state_dict() and load_state_dict().
    whole, first, second = Classifier(), Classifier(), Classifier()
    with loader() as train:
        trainer(max_epochs=3).fit(whole, train)

    def kept():
        keep = lightning.pytorch.callbacks.ModelCheckpoint(tmp_path, filename="state", every_n_train_steps=6)
        return {"enable_checkpointing": True, "callbacks": [keep]}

    with loader() as train:
        trainer(max_steps=6, **kept()).fit(first, train)
    with loader() as train:
        trainer(max_epochs=3, **kept()).fit(second, train, ckpt_path=tmp_path / "state.ckpt", weights_only=False)
    seen = [batch for model in (first, second) for epoch in model.trained for batch in epoch]
    assert seen == [batch for epoch in whole.trained for batch in epoch]
    assert torch.equal(second.head.weight, whole.head.weight)


def test_prediction():
    class Ids(Classifier):
        def predict_step(self, batch, number):
            return batch["id"].tolist()

    with loader(20, shuffle=False) as made:
        assert trainer().predict(Ids(), made) == [list(range(i, min(i + 8, 20))) for i in (0, 8, 16)]


def test_the_readmes_loop():
    model = Classifier()
    with loader() as train, loader(20, shuffle=False) as held_back:
        run("PyTorch:", {"torch": torch, "lightning": Quiet, "model": model, "train": train, "held_back": held_back})
    assert model.trained[:-1] == epochs(loader(), 4)[1:]


class Quiet:
    """The module ``lightning``, without files and bars."""

    Trainer = staticmethod(trainer)
