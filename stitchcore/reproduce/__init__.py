"""The three papers' tables, beside ours: what they printed (`papers.py`), what we count and
estimate on the same models (`counts.py`), and the two in their columns (`tables.py`)."""
