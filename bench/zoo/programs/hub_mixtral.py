"""keras-hub: Mixtral's experts behind a router, predictions only."""

import keras
import keras_hub
import numpy as np
import watch

keras.utils.set_random_seed(82)
numbers = np.random.default_rng(82)
model = keras_hub.models.MixtralBackbone(
    vocabulary_size=90, num_layers=1, num_query_heads=4, num_key_value_heads=2, hidden_dim=32,
    intermediate_dim=48, num_experts=4, top_k=2, sliding_window=8,
)  # fmt: skip
for call in range(16):
    ids = numbers.integers(0, 90, (4, 12))
    h = model.predict_on_batch({"token_ids": ids, "padding_mask": np.ones_like(ids)})
    watch.step(h)
    if call % 4 == 3:
        print("call", call, f"{h.std():.5f} {h[0, 0, 0]:.5f}")
