"""The HTTP gateway: jobs hand in graphs, fetch artifacts, and report events and savings."""
