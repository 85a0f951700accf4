"""A LayerNorm MLP in a TF1 Session with TF1's old reference variables."""

from __future__ import annotations

import tf1_network

if __name__ == "__main__":
    tf1_network.train(__doc__, resource=False)
