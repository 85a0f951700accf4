"""Planning: which instructions become one kernel, and what that is estimated to cost."""
