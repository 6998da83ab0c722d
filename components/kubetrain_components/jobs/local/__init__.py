"""Jobs as processes on this machine."""
