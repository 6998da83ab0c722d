"""Jobs that run in pods: what they are, the backends that run them, and the engine that follows and judges them."""
