"""The code that the steps of a run share: parameters, the site that they run on, events."""
