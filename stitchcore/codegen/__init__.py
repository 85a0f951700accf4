"""Loop IR to source text: one shared renderer, a thin dialect each for C and CUDA C++."""
