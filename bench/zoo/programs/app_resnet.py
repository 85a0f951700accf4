"""keras.applications: ResNet50 (the first version), evaluated after two epochs of `fit`."""

import keras
import numpy as np
import watch

keras.utils.set_random_seed(54)
numbers = np.random.default_rng(54)
model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=4)
model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "sparse_categorical_crossentropy")
x = numbers.normal(size=(32, 32, 32, 3)).astype("float32")
y = numbers.integers(0, 4, 32)
history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[watch.callback(keras)])
print(*(f"{value:.3f}" for value in history.history["loss"]))
print(f"{model.evaluate(x, y, batch_size=8, verbose=0):.3f}")
