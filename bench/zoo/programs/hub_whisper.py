"""keras-hub: Whisper's encoder and decoder, bfloat16 weights in the middle, `predict_on_batch`."""

import keras
import keras_hub
import numpy as np
import watch

keras.utils.set_random_seed(85)
numbers = np.random.default_rng(85)
model = keras_hub.models.WhisperBackbone(
    vocabulary_size=80, num_layers=1, num_heads=4, hidden_dim=32, intermediate_dim=64,
    num_mels=16, max_encoder_sequence_length=40, max_decoder_sequence_length=12, dtype="bfloat16",
)  # fmt: skip
for call in range(12):
    ids = numbers.integers(0, 80, (4, 8))
    x = {
        "encoder_features": numbers.normal(size=(4, 40, 16)).astype("float32"),
        "decoder_token_ids": ids,
        "decoder_padding_mask": np.ones_like(ids),
    }
    found = model.predict_on_batch(x)
    h = np.asarray(found["decoder_sequence_output"], "float32")
    watch.step(h)
    if call % 3 == 2:
        print("call", call, f"{h.std():.2f}", h.shape)
