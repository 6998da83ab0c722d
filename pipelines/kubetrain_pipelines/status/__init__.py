"""What a run or a job does now: its stages, pods and progress, and what it waits for."""
