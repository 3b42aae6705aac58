"""Lower bounds on epsilon from canaries: what was told apart cannot have been hidden."""
