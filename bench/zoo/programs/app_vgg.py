"""keras.applications: VGG16's first blocks, frozen, as features of a head that `fit` trains."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(51)
numbers = np.random.default_rng(51)
whole = keras.applications.VGG16(weights=None, include_top=False, input_shape=(32, 32, 3))
base = keras.Model(whole.input, whole.get_layer("block2_pool").output)
base.trainable = False
image = keras.Input((32, 32, 3))
h = keras.layers.GlobalAveragePooling2D()(base(keras.applications.vgg16.preprocess_input(image)))
model = keras.Model(image, keras.layers.Dense(3)(keras.layers.Dropout(0.5)(h)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
x = numbers.random(size=(40, 32, 32, 3)).astype("float32") * 255
y = numbers.integers(0, 3, 40)
history = model.fit(x, y, batch_size=8, epochs=5, verbose=0, callbacks=[watch.callback(keras)])
for name, values in history.history.items():
    print(name, *(f"{value:.4f}" for value in values))
