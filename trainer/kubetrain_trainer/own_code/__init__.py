"""Runs the user's own script, command or task, and talks with it."""
