"""Jobs that run in pods: what they are, who runs them, and the one engine that follows and judges them."""
