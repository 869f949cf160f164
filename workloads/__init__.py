"""What is trained: the workload contract, the one training loop, and the built-in workloads."""
