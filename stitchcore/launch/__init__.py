"""How kernels are launched, as data: places, programs of regions and modules, and their tables."""
