"""What makes older code and older frameworks run here as they are."""
