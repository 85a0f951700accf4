"""A zoo of programs that nobody here tuned the product to, and one judge for all of them."""
