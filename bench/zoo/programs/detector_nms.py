"""A detector's inference: depthwise features with SE, anchors decoded, IoU, non-max suppression."""

import keras
import numpy as np
import tensorflow as tf
import watch

keras.utils.set_random_seed(74)
layers, numbers = keras.layers, np.random.default_rng(74)


def mobile(x, filters, stride):
    skip = x
    x = layers.Conv2D(3 * x.shape[-1], 1, use_bias=False)(x)
    x = layers.Activation("hard_swish")(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, strides=stride, padding="same", use_bias=False)(x)
    x = layers.Activation("hard_swish")(layers.BatchNormalization()(x))
    s = layers.GlobalAveragePooling2D(keepdims=True)(x)
    s = layers.Conv2D(x.shape[-1], 1, activation="hard_sigmoid")(
        layers.Conv2D(4, 1, activation="relu")(s)
    )
    x = layers.BatchNormalization()(layers.Conv2D(filters, 1)(x * s))
    return layers.Add()([x, skip]) if stride == 1 and skip.shape[-1] == filters else x


image = keras.Input((48, 48, 3))
x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu6")(image)
x = mobile(mobile(x, 12, 2), 12, 1)
y = mobile(x, 16, 2)
up = layers.UpSampling2D(interpolation="nearest")(layers.Conv2D(12, 1)(y))
levels = [layers.Add()([x, up]), y]
raw = [layers.Reshape((-1, 7))(layers.Conv2D(2 * 7, 3, padding="same")(level)) for level in levels]
network = keras.Model(image, layers.Concatenate(axis=1)(raw))


def anchors():
    made = []
    for size, scale in ((12, 0.12), (6, 0.3)):
        grid = (np.arange(size) + 0.5) / size
        cy, cx = np.meshgrid(grid, grid, indexing="ij")
        for ratio in (0.7, 1.4):
            height = np.full_like(cy, scale * ratio)
            made.append(
                np.stack([cy, cx, height, np.full_like(cx, scale / ratio)], -1).reshape(-1, 4)
            )
    return tf.constant(np.concatenate(made), tf.float32)


ANCHORS = anchors()


@tf.function(input_signature=[tf.TensorSpec([None, None, None, 3], tf.uint8)])
def detect(images):
    x = tf.image.resize(tf.cast(images, tf.float32), [48, 48]) / 127.5 - 1.0
    out = network(x, training=False)
    centre = out[..., :2] * 0.1 * ANCHORS[:, 2:] + ANCHORS[:, :2]
    size = tf.exp(tf.clip_by_value(out[..., 2:4] * 0.2, -4.0, 4.0)) * ANCHORS[:, 2:]
    boxes = tf.clip_by_value(tf.concat([centre - size / 2, centre + size / 2], -1), 0.0, 1.0)
    scores = tf.sigmoid(out[..., 4:5]) * tf.nn.softmax(out[..., 5:])
    found = tf.image.combined_non_max_suppression(
        boxes[:, :, None], scores, 5, 10, iou_threshold=0.5, score_threshold=0.2
    )
    kept = tf.image.non_max_suppression(boxes[0], tf.reduce_max(scores[0], -1), 8, 0.4)
    crops = tf.image.crop_and_resize(x, tf.gather(boxes[0], kept), tf.zeros_like(kept), [8, 8])
    tl = tf.maximum(boxes[0, :, None, :2], boxes[0, None, :, :2])
    br = tf.minimum(boxes[0, :, None, 2:], boxes[0, None, :, 2:])
    both = tf.reduce_prod(tf.maximum(br - tl, 0.0), -1)
    area = tf.reduce_prod(boxes[0, :, 2:] - boxes[0, :, :2], -1)
    iou = tf.math.divide_no_nan(both, area[:, None] + area[None] - both)
    crowd = tf.reduce_mean(tf.cast(iou > 0.5, tf.float32), 1)
    return (
        found.nmsed_boxes,
        found.nmsed_scores,
        found.valid_detections,
        tf.reduce_mean(crops, [1, 2]),
        crowd,
    )


for call in range(100):
    size = (60, 72, 48)[call % 3]
    images = numbers.integers(0, 256, (1 + call % 4, size, size, 3)).astype("uint8")
    boxes, scores, valid, crops, crowd = detect(tf.constant(images))
    watch.step(boxes=boxes, scores=scores, valid=valid, crops=crops, crowd=crowd)
    if call % 25 == 24:
        print("call", call, valid.numpy().tolist(), f"{float(scores[0, 0]):.4f}")
