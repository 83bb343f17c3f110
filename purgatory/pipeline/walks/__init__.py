"""Going over a journal once: kernels that sum up a task's rows, and the engines that hand the rows out."""
