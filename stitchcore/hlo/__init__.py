"""HLO modules as frozen, interned values: parse, print, simplify, unify, evaluate."""
