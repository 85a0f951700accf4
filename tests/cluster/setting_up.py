"""Images built and given to a node, and the charts installed: the first minutes of the demo."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.whole import Whole
