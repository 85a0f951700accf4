"""Tools that attack the compiler: random modules, reducers, dumps."""
