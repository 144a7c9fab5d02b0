"""Train a ResNet in TensorFlow. A diff of this file and another ``train_*.py`` shows only the framework.

python -m portaloader.examples.train_tensorflow --width 16    # on the bundled samples: a narrow one learns them in a minute
python -m portaloader.examples.train_tensorflow --data train --held-back val --depth 50 --size 224 --batch-size 256 --amp
"""

from __future__ import annotations

import math

import tensorflow as tf
from tensorflow import Tensor, keras
from tensorflow.keras import layers

from .training import MOMENTUM, WEIGHT_DECAY, Convolution, Job, Layers, Residual, main


class Normalised(keras.Sequential):  # type: ignore[misc]
    """A convolution and what follows it."""

    def __init__(self, plan: Convolution) -> None:
        pad = layers.ZeroPadding2D(plan.kernel // 2)
        he = keras.initializers.HeNormal()
        gain = keras.initializers.Constant(plan.gain)
        convolution = layers.Conv2D(plan.after, plan.kernel, plan.stride, use_bias=False, kernel_initializer=he)
        norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, gamma_initializer=gain)
        super().__init__([pad, convolution, norm, layers.ReLU() if plan.relu else layers.Identity()])


class Block(keras.Model):  # type: ignore[misc]
    """Convolutions in a row, added to what went in."""

    def __init__(self, plan: Residual) -> None:
        super().__init__()
        self.row = keras.Sequential([Normalised(convolution) for convolution in plan.row])
        self.shortcut = Normalised(plan.shortcut) if plan.shortcut else layers.Identity()

    def call(self, image: Tensor, training: bool = False) -> Tensor:
        """Of the same shape, or with more channels and half the size."""
        return tf.nn.relu(self.row(image, training=training) + self.shortcut(image, training=training))


class ResNet(keras.Model):  # type: ignore[misc]
    """Images (batch, 3, size, size) to one score for each class."""

    def __init__(self, plan: Layers) -> None:
        super().__init__()
        self.stem = keras.Sequential([Normalised(plan.stem), layers.ZeroPadding2D(1), layers.MaxPool2D(3, 2)])
        self.blocks = keras.Sequential([Block(block) for block in plan.blocks])
        self.head = layers.Dense(plan.classes, dtype="float32")

    def call(self, image: Tensor, training: bool = False) -> Tensor:
        """The blocks' mean over the image decides."""
        image = tf.transpose(image, (0, 2, 3, 1))  # TensorFlow's convolutions on the CPU want the channels last
        result = self.blocks(self.stem(image, training=training), training=training)
        return self.head(tf.reduce_mean(result, (1, 2)))


class Trainer:
    """The network and its optimizer."""

    def __init__(self, job: Job) -> None:
        keras.utils.set_random_seed(job.seed)
        keras.mixed_precision.set_global_policy("mixed_bfloat16" if job.mixed else "float32")
        self.device = "/CPU:0" if job.device.ordinal is None else f"/GPU:{job.device.ordinal}"
        with tf.device(self.device):
            self.network = ResNet(job.layers)
            self.network(tf.zeros((1, 3, 32, 32)), training=False)  # makes the weights
            self.optimizer = keras.optimizers.SGD(0.0, MOMENTUM)
            self.optimizer.build(self.network.trainable_variables)
        self.parameters = sum(math.prod(weight.shape) for weight in self.network.trainable_variables)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the steps that come."""
        self.optimizer.learning_rate = rate

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Train on a batch: its mean loss, and how many of its samples were right."""
        weights = self.network.trainable_variables
        with tf.device(self.device):
            with tf.GradientTape() as tape:
                scores = self.network(batch["image"], training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label"], scores)
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, weights)
            decayed = [gradient + WEIGHT_DECAY * weight for gradient, weight in zip(gradients, weights, strict=True)]
            self.optimizer.apply(decayed, weights)
            return loss, tf.math.count_nonzero(tf.argmax(scores, 1) == batch["label"])

    @tf.function  # type: ignore[untyped-decorator]
    def evaluate(self, batch: dict[str, Tensor]) -> Tensor:
        """How many of the batch's samples are right."""
        with tf.device(self.device):
            scores = self.network(batch["image"], training=False)
            return tf.math.count_nonzero((tf.argmax(scores, 1) == batch["label"]) & batch["valid"])


if __name__ == "__main__":
    main("tensorflow", Trainer)
