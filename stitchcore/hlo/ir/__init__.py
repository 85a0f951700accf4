"""HLO as frozen, interned values: one record per opcode."""
