"""Methods from parts: a scorer, an allocator, a store and a budget, and the names that put them together."""
