"""What runs in the training pods. The modules beside this file are the contract that both frameworks write and the
components read: standard library only. Each framework has a folder of its own."""
