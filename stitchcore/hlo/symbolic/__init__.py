"""Two modules of different sizes become one with symbols."""
