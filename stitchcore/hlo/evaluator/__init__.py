"""What HLO means, by numpy: in storage precision or in float64."""
