"""The code that runs in the training pods.

The modules beside this file are the contract between the trainers and the components, and import only the standard
library. Each framework has its own folder.
"""
