"""How kernels are launched, as data: the program of a region, and the tables that C++ reads."""
