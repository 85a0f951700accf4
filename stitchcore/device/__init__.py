"""Device records and occupancy: the bottom layer, one record per device."""
