"""Device staging of NIXL transfers: scattered blocks travel as one range."""
