"""The PyTorch trainer: DistributedDataParallel under torchrun."""
